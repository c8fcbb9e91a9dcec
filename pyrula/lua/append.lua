-- append: add events to a claimed run's journal, and with it park, finish or requeue the run.
-- ARGV: mode, id, cursor before, the claim's life, n, entry 1 ... n, m, message 1 ... m (taken out of the inbox),
-- then by mode
--   'append'   -
--   'park'     status, topic, wake us or '', number of messages the worker knows of
--   'finish'   status, keep ms, terminal 1|0, error JSON or ''
--   'requeue'  spent 1|0
--   'continue' input, what the next journal says of itself (JSON fields)
-- Reply: 'OK', for a park 'PARKED' or 'QUEUED'; 'LOST' (stale epoch, or not held) and 'GAP' change nothing.
-- A repeat answers as the first time.
-- Two inner commands for the plain form with one event.
local parting = {}

parting.park = function(p, id, args, i, m)
  local run = p .. 'run:' .. id
  local seen = tonumber(args[i + 3]) - m
  redis.call('ZREM', p .. 'claims', id)
  if redis.call('LLEN', p .. 'inbox:' .. id) > seen then
    local f = redis.call('HMGET', run, 'own', 'sc', 'sub')
    release(p, id, f[1], f[2] or f[3], '')
    return 'QUEUED'
  end
  redis.call('HSET', run, 'st', args[i], 'top', args[i + 1], 'wake', args[i + 2])
  if args[i] == 'paused' then
    redis.call('HDEL', run, 'pb')
  end
  if args[i + 2] ~= '' then
    set_timer(p, id, args[i + 2])
  end
  return 'PARKED'
end

parting.finish = function(p, id, args, i, _, last, seq)
  local at, at_number = now()
  redis.call('ZREM', p .. 'claims', id)
  if args[i + 2] == '1' then
    close(p, id, redis.call('HGET', p .. 'run:' .. id, 'own'), seq, args[i], args[i + 1], last, at, at_number)
  else
    redis.call('HSET', p .. 'run:' .. id, 'st', args[i], 'err', args[i + 3], 'fin', at)
    redis.call('SPUBLISH', p .. 'end:' .. id, '0 ')
  end
  return 'OK'
end

parting.requeue = function(p, id, args, i)
  local run = p .. 'run:' .. id
  redis.call('ZREM', p .. 'claims', id)
  local f = redis.call('HMGET', run, 'own', 'sc', 'sub', 'cur', 'rq', 'rqs')
  if args[i] == '1' then
    redis.call('HSET', run, 'rq', int(losses(tonumber(f[4]), f[5], f[6])), 'rqs', f[4])
  end
  release(p, id, f[1], f[2] or f[3], '')
  return 'OK'
end

-- The journal is kept as one link of a chain, and the run is queued with a new, empty one. What lies in the inbox stays.
parting['continue'] = function(p, id, args, i)
  local run = p .. 'run:' .. id
  local at = now()
  redis.call('ZREM', p .. 'claims', id)
  local f = redis.call('HMGET', run, 'own', 'cur', 'ln')
  local link = tonumber(f[3] or 1)
  local cursor = int(epoch_of(tonumber(f[2])) * SPAN)
  redis.call('RENAME', p .. 'log:' .. id, p .. 'old:' .. int(link) .. ':' .. id)
  redis.call('HSET', run, 'cur', cursor, 'in', args[i], 'ct', args[i + 1], 'ln', int(link + 1), 'sc', at,
    'rq', '0', 'rqs', cursor)
  release(p, id, f[1], at, '')
  return 'OK'
end

-- The answer to a call that would leave the cursor where it is. Someone else may have put it there
-- (a sweep, a terminate): then the last record, or without one the status, is not the caller's.
local function repeated(p, id, args, mode, n)
  local status = redis.call('HGET', p .. 'run:' .. id, 'st')
  if n > 0 then
    local last = redis.call('XREVRANGE', p .. 'log:' .. id, '+', '-', 'COUNT', 1)[1]
    if not last or last[2][2] ~= args[5 + n] then
      return 'LOST'
    end
  elseif mode == 'finish' and status ~= args[7 + tonumber(args[6])] then
    return 'LOST'
  end
  if mode == 'park' then
    return status == 'queued' and 'QUEUED' or 'PARKED'
  end
  return 'OK'
end

F.append = function(keys, args)
  local p, mode, id = keys[1], args[1], args[2]
  local run = p .. 'run:' .. id
  local before, n = tonumber(args[3]), tonumber(args[5])
  if not known(run, args[4]) then
    return 'LOST'
  end
  local part = parting[mode]
  local refused = advance(run, before, n, part and SPAN or 0)
  if refused == 'DUP' and part then
    return repeated(p, id, args, mode, n)
  elseif refused then
    return refused == 'DUP' and 'OK' or refused
  end
  local seq = seq_of(before)
  for k = 1, n do
    write(p, id, seq + k, args[5 + k])
  end
  local i = 6 + n
  local m = tonumber(args[i])
  for k = 1, m do
    redis.call('LREM', p .. 'inbox:' .. id, 1, args[i + k])
  end
  if part then
    return part(p, id, args, i + m + 1, m, n > 0 and args[5 + n] or '', seq + n)
  end
  return 'OK'
end
