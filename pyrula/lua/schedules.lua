-- Schedules of a workflow. All of them live in its first shard, whatever their number: they are few, and
-- one call finds those that are due. `schedules` holds every id by the time at which it is to be looked
-- at (+inf for never), `schedule:<id>` what it is and where it stands, `fired:<id>` its last outcomes.
local OUTCOMES_KEPT = 20

local function schedule_record(p, id)
  local f = redis.call('HMGET', p .. 'schedule:' .. id, 'doc', 'rev', 'crt', 'next', 'due', 'last')
  if not f[1] then
    return nil
  end
  local outcomes = redis.call('LRANGE', p .. 'fired:' .. id, 0, -1)
  return { id, f[1], f[2], f[3], f[4], f[5], f[6] or '0', outcomes }
end

local function look_at(p, id, due)
  redis.call('ZADD', p .. 'schedules', due == '0' and '+inf' or due, id)
end

local function note_outcome(p, id, outcome)
  local list = p .. 'fired:' .. id
  redis.call('LPUSH', list, outcome)
  redis.call('LTRIM', list, 0, OUTCOMES_KEPT - 1)
end

-- schedule_put: keep a schedule, or change it. ARGV: id, revision it was read at ('' to create), document, next, due
-- Reply: {'OK', record} | {'EXISTS'} (another document) | {'NONE'} | {'MOVED'} (changed since it was read)
-- A repeat of a creation answers as the first time.
F.schedule_put = function(keys, args)
  local p, id = keys[1], args[1]
  local key = p .. 'schedule:' .. id
  local f = redis.call('HMGET', key, 'doc', 'rev')
  if args[2] == '' then
    if f[1] then
      if f[1] ~= args[3] then
        return { 'EXISTS' }
      end
      return { 'OK', schedule_record(p, id) }
    end
    redis.call('HSET', key, 'crt', (now()), 'last', '0', 'rev', '0')
  elseif not f[1] then
    return { 'NONE' }
  elseif f[2] ~= args[2] then
    return { 'MOVED' }
  end
  redis.call('HSET', key, 'doc', args[3], 'next', args[4], 'due', args[5])
  redis.call('HINCRBY', key, 'rev', 1)
  look_at(p, id, args[5])
  ring(p, 's')
  return { 'OK', schedule_record(p, id) }
end

-- schedule_delete: forget a schedule. ARGV: id. Reply: 1, or 0 when there is none.
F.schedule_delete = function(keys, args)
  local p, id = keys[1], args[1]
  redis.call('ZREM', p .. 'schedules', id)
  redis.call('DEL', p .. 'fired:' .. id)
  return redis.call('DEL', p .. 'schedule:' .. id)
end

-- schedule_list: ARGV: id ... (none for all). Reply: {record ...}
F.schedule_list = function(keys, args)
  local p = keys[1]
  local ids = #args > 0 and args or redis.call('ZRANGE', p .. 'schedules', 0, -1)
  local found = {}
  for i = 1, #ids do
    found[#found + 1] = schedule_record(p, ids[i])
  end
  return found
end

-- schedule_due: lend those that are due to the caller; each comes back when the lease ends and it has not moved on.
-- ARGV: limit, lease ms. Reply: {now us, next due us or '', {record ...}}
F.schedule_due = function(keys, args)
  local p = keys[1]
  local at, at_number = now()
  local ids = redis.call('ZRANGE', p .. 'schedules', '-inf', at, 'BYSCORE', 'LIMIT', 0, args[1])
  local back = int(at_number + tonumber(args[2]) * 1000)
  local lent = {}
  for i = 1, #ids do
    local record = schedule_record(p, ids[i])
    if record then
      redis.call('ZADD', p .. 'schedules', back, ids[i])
      lent[#lent + 1] = record
    else
      redis.call('ZREM', p .. 'schedules', ids[i])
    end
  end
  local first = redis.call('ZRANGE', p .. 'schedules', 0, 0, 'WITHSCORES')[2]
  return { at, (first and first ~= 'inf') and int(tonumber(first)) or '', lent }
end

-- schedule_fired: move schedules on, each from the revision it was lent at.
-- ARGV: for each: id, revision, next, due, last ('' to leave it), outcome ('' for none)
-- Reply: {1 | 0 (it has changed meanwhile, or is gone) ...}
F.schedule_fired = function(keys, args)
  local p = keys[1]
  local moved = {}
  for i = 1, #args, 6 do
    local id = args[i]
    local key = p .. 'schedule:' .. id
    if redis.call('HGET', key, 'rev') == args[i + 1] then
      redis.call('HSET', key, 'next', args[i + 2], 'due', args[i + 3])
      redis.call('HINCRBY', key, 'rev', 1)
      if args[i + 4] ~= '' then
        redis.call('HSET', key, 'last', args[i + 4])
      end
      look_at(p, id, args[i + 3])
      if args[i + 5] ~= '' then
        note_outcome(p, id, args[i + 5])
      end
      moved[#moved + 1] = 1
    else
      moved[#moved + 1] = 0
    end
  end
  return moved
end

-- schedule_note: note an outcome beside the occurrences, once. ARGV: id, outcome. Reply: 1, or 0 when there is none.
F.schedule_note = function(keys, args)
  local p, id = keys[1], args[1]
  if redis.call('EXISTS', p .. 'schedule:' .. id) == 0 then
    return 0
  end
  if not redis.call('LPOS', p .. 'fired:' .. id, args[2]) then
    note_outcome(p, id, args[2])
  end
  return 1
end
