-- Application events, and the triggers that start runs by them. All of a namespace's lie in one slot,
-- `<namespace>:{$events}:`, which no workflow's shard can be; `p` is that prefix here.
--
-- `log` is a stream of what was emitted, one consumer group a trigger; `ids` (by time) tells which events
-- are known. A batch gathers under `batch:<trigger>:<key>`; `waiting:<trigger>` has each key by the time at
-- which its batch ends. A batch that has ended is `ended:<trigger>:<number>`, its number in `ready:<trigger>`
-- by the time from which it may be given to a worker. A number is never given out twice (`numbers`).
-- `refused:<trigger>` keeps the last events that could not be acted on, with the reasons.
local REFUSED_KEPT = 100
-- Workers share one consumer: an event goes to whoever asks first, and to another one when its lease is over.
local CONSUMER = 'workers'

-- emit: ARGV: keep ms, then for each event: id, name, payload. Reply: {1 (new) | 0 (known) ...}
F.emit = function(keys, args)
  local p = keys[1]
  local at, at_number = now()
  local oldest = at_number - tonumber(args[1]) * 1000
  local new = {}
  for i = 2, #args, 3 do
    local added = redis.call('ZADD', p .. 'ids', 'NX', at, args[i])
    if added == 1 then
      redis.call('XADD', p .. 'log', 'MINID', '~', int(math.max(0, oldest / 1000)), '*',
        'i', args[i], 'n', args[i + 1], 'd', args[i + 2], 't', at)
    end
    new[#new + 1] = added
  end
  redis.call('ZREMRANGEBYSCORE', p .. 'ids', '-inf', '(' .. int(oldest))
  ring(p, 'e')
  return new
end

local function event_of(item)
  local f = item[2]
  return { item[1], f[2], f[4], f[6], f[8] }
end

-- events_read: lend events to the caller, those first whose lease ran out. A trigger that is new begins at `start`.
-- ARGV: trigger, limit, lease ms, start (a stream id, '0' or '$'). Reply: {{stream id, id, name, payload, at us} ...}
F.events_read = function(keys, args)
  local p, trigger, limit = keys[1], args[1], tonumber(args[2])
  local log = p .. 'log'
  local again = redis.pcall('XAUTOCLAIM', log, trigger, CONSUMER, args[3], '0', 'COUNT', limit)
  if again.err then
    redis.call('XGROUP', 'CREATE', log, trigger, args[4], 'MKSTREAM')
    again = { '0-0', {} }
  end
  local found = {}
  for i = 1, #again[2] do
    found[#found + 1] = event_of(again[2][i])
  end
  if #found < limit then
    local fresh = redis.call('XREADGROUP', 'GROUP', trigger, CONSUMER, 'COUNT', limit - #found, 'STREAMS', log, '>')
    local items = fresh and (fresh[1] and fresh[1][2] or fresh[log]) or {}
    for i = 1, #items do
      found[#found + 1] = event_of(items[i])
    end
  end
  return found
end

-- events_done: events that were acted on, or refused. ARGV: trigger, n, stream id 1 ... n, refusal (JSON) ...
-- Reply: how many were lent until now
F.events_done = function(keys, args)
  local p, trigger, n = keys[1], args[1], tonumber(args[2])
  local done = 0
  for i = 3, 2 + n do
    done = done + redis.call('XACK', p .. 'log', trigger, args[i])
  end
  local refused = p .. 'refused:' .. trigger
  for i = 3 + n, #args do
    if not redis.call('LPOS', refused, args[i]) then
      redis.call('LPUSH', refused, args[i])
    end
  end
  redis.call('LTRIM', refused, 0, REFUSED_KEPT - 1)
  return done
end

local function end_batch(p, trigger, key, at)
  local number = redis.call('HINCRBY', p .. 'numbers', trigger, 1)
  redis.call('RENAME', p .. 'batch:' .. trigger .. ':' .. key, p .. 'ended:' .. trigger .. ':' .. int(number))
  redis.call('ZREM', p .. 'waiting:' .. trigger, key)
  redis.call('ZADD', p .. 'ready:' .. trigger, at, int(number))
end

-- batch_add: put events into their batches, each once: one that is not lent any more was put there before.
-- ARGV: trigger, most events, longest wait ms, then for each event: stream id, key, event as JSON
-- Reply: how many were added
F.batch_add = function(keys, args)
  local p, trigger, most = keys[1], args[1], tonumber(args[2])
  local at, at_number = now()
  local added = 0
  for i = 4, #args, 3 do
    if redis.call('XACK', p .. 'log', trigger, args[i]) == 1 then
      local key = args[i + 1]
      local length = redis.call('RPUSH', p .. 'batch:' .. trigger .. ':' .. key, args[i + 2])
      added = added + 1
      if length == 1 then
        redis.call('ZADD', p .. 'waiting:' .. trigger, int(at_number + tonumber(args[3]) * 1000), key)
      end
      if length >= most then
        end_batch(p, trigger, key, at)
      end
    end
  end
  return added
end

-- batch_due: end the batches whose time is over, and lend those that have ended.
-- ARGV: trigger, limit, lease ms. Reply: {now us, next time us or '', {{number, {event as JSON ...}} ...}}
F.batch_due = function(keys, args)
  local p, trigger = keys[1], args[1]
  local at, at_number = now()
  local over = redis.call('ZRANGE', p .. 'waiting:' .. trigger, '-inf', at, 'BYSCORE', 'LIMIT', 0, args[2])
  for i = 1, #over do
    end_batch(p, trigger, over[i], at)
  end
  local numbers = redis.call('ZRANGE', p .. 'ready:' .. trigger, '-inf', at, 'BYSCORE', 'LIMIT', 0, args[2])
  local lent = {}
  for i = 1, #numbers do
    redis.call('ZADD', p .. 'ready:' .. trigger, int(at_number + tonumber(args[3]) * 1000), numbers[i])
    lent[i] = { numbers[i], redis.call('LRANGE', p .. 'ended:' .. trigger .. ':' .. numbers[i], 0, -1) }
  end
  local nearest
  for _, kind in ipairs({ 'waiting:', 'ready:' }) do
    local first = tonumber(redis.call('ZRANGE', p .. kind .. trigger, 0, 0, 'WITHSCORES')[2])
    if first and (not nearest or first < nearest) then
      nearest = first
    end
  end
  return { at, nearest and int(nearest) or '', lent }
end

-- batch_done: batches that were acted on, or refused. ARGV: trigger, n, number 1 ... n, refusal (JSON) ...
-- Reply: how many there were
F.batch_done = function(keys, args)
  local p, trigger, n = keys[1], args[1], tonumber(args[2])
  local done = 0
  for i = 3, 2 + n do
    done = done + redis.call('DEL', p .. 'ended:' .. trigger .. ':' .. args[i])
    redis.call('ZREM', p .. 'ready:' .. trigger, args[i])
  end
  local refused = p .. 'refused:' .. trigger
  for i = 3 + n, #args do
    if not redis.call('LPOS', refused, args[i]) then
      redis.call('LPUSH', refused, args[i])
    end
  end
  redis.call('LTRIM', refused, 0, REFUSED_KEPT - 1)
  return done
end

-- trigger_list: Reply: {{trigger, lag or '', lent, last stream id, batches gathering, batches ended, {refusal ...}} ...}
F.trigger_list = function(keys, _)
  local p = keys[1]
  local found = {}
  if redis.call('EXISTS', p .. 'log') == 0 then
    return found
  end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', p .. 'log')) do
    local f = group
    if #group > 0 then
      f = {}
      for i = 1, #group, 2 do
        f[group[i]] = group[i + 1]
      end
    end
    local trigger = f['name']
    found[#found + 1] = {
      trigger,
      f['lag'] or '',
      f['pending'],
      f['last-delivered-id'],
      redis.call('ZCARD', p .. 'waiting:' .. trigger),
      redis.call('ZCARD', p .. 'ready:' .. trigger),
      redis.call('LRANGE', p .. 'refused:' .. trigger, 0, -1),
    }
  end
  return found
end

-- trigger_seek: have a trigger go over what is kept, from a stream id on. ARGV: trigger, stream id ('0' for all)
-- Reply: 1, or 0 when there is no such trigger
F.trigger_seek = function(keys, args)
  local p = keys[1]
  local done = redis.pcall('XGROUP', 'SETID', p .. 'log', args[1], args[2])
  if done.err then
    return 0
  end
  ring(p, 'e')
  return 1
end

-- trigger_drop: forget a trigger that no code has any more. ARGV: trigger. Reply: 1, or 0 when there is none
F.trigger_drop = function(keys, args)
  local p, trigger = keys[1], args[1]
  local done = redis.pcall('XGROUP', 'DESTROY', p .. 'log', trigger)
  for _, key in ipairs(redis.call('ZRANGE', p .. 'waiting:' .. trigger, 0, -1)) do
    redis.call('DEL', p .. 'batch:' .. trigger .. ':' .. key)
  end
  for _, number in ipairs(redis.call('ZRANGE', p .. 'ready:' .. trigger, 0, -1)) do
    redis.call('DEL', p .. 'ended:' .. trigger .. ':' .. number)
  end
  redis.call('DEL', p .. 'waiting:' .. trigger, p .. 'ready:' .. trigger, p .. 'refused:' .. trigger)
  return type(done) == 'number' and done or 0
end
