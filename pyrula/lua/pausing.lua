-- pause: hold a run back until it is unpaused. ARGV: id, message id, message (for the worker that holds it)
-- Reply: {'OK' (also for a repeat) | 'ASKED' (its worker was told) | 'ENDED' | 'NONE', status before}
-- `pb` is the status to come back to, and topic and wake time stay with the run; what arrives meanwhile is kept.
-- A worker leaves the message where it is until it is taken back, so that a pause holds whatever happens in between.
F.pause = function(keys, args)
  local p, id = keys[1], args[1]
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'own', 'wake', 'err')
  local status = f[1]
  if not status then
    return { 'NONE', '' }
  elseif ENDED[status] then
    return { 'ENDED', status }
  elseif status == 'paused' then
    return { 'OK', status }
  elseif status == 'running' then
    if redis.call('SADD', p .. 'seen:' .. id, args[2]) == 1 then
      redis.call('RPUSH', p .. 'inbox:' .. id, args[3])
      ring(p, 'i:' .. id)
    end
    return { 'ASKED', status }
  end
  if f[3] and f[3] ~= '' then
    redis.call('ZREM', p .. 'timers', id)
  elseif status == 'queued' then
    dequeue(p, f[2] or '', id)
  end
  redis.call('HSET', run, 'st', 'paused', 'pb', status)
  return { 'OK', status }
end

-- unpause: let a paused run go on. ARGV: id, message id, message (for a worker that was asked and has not come to it)
-- Reply: {'OK' | 'ASKED' | 'ENDED' | 'NONE', status before}; one that is not paused is left as it is.
F.unpause = function(keys, args)
  local p, id = keys[1], args[1]
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'own', 'wake', 'sc', 'sub', 'pb')
  local status, wake, back = f[1], f[3] or '', f[6] or ''
  if not status then
    return { 'NONE', '' }
  elseif ENDED[status] then
    return { 'ENDED', status }
  elseif status == 'running' then
    if redis.call('SADD', p .. 'seen:' .. id, args[2]) == 1 then
      redis.call('RPUSH', p .. 'inbox:' .. id, args[3])
      ring(p, 'i:' .. id)
    end
    return { 'ASKED', status }
  elseif status ~= 'paused' then
    return { 'OK', status }
  end
  if back == '' and redis.call('SADD', p .. 'seen:' .. id, args[2]) == 1 then
    -- Its worker left the request in the inbox when it parked the run: this one takes it back.
    redis.call('RPUSH', p .. 'inbox:' .. id, args[3])
  end
  local _, at_number = now()
  local due = wake ~= '' and tonumber(wake) <= at_number
  local rests = back == 'waiting' or back == 'sleeping'
  if due or (rests and redis.call('LLEN', p .. 'inbox:' .. id) > 0) or not (rests or (back == 'queued' and wake ~= '')) then
    release(p, id, f[2], f[4] or f[5], '')
  else
    redis.call('HSET', run, 'st', back)
    if wake ~= '' then
      set_timer(p, id, wake)
    end
  end
  redis.call('HSET', run, 'pb', '')
  return { 'OK', status }
end

-- fork: queue a run that begins with a journal of its own. ARGV: id, owner, priority, attributes, headers,
-- input digest, claims that the journal tells of, n, entry 1 ... n
-- Reply: {created 1|0, status, digest of the first submission, submitted at us}
F.fork = function(keys, args)
  local p, id, owner = keys[1], args[1], args[2]
  local run = p .. 'run:' .. id
  local had = redis.call('HMGET', run, 'st', 'ih', 'sub')
  if had[1] then
    return { 0, had[1], had[2], had[3] }
  end
  local at = now()
  local n = tonumber(args[8])
  for i = 1, n do
    write(p, id, i, args[8 + i])
  end
  local cursor = int(2 * tonumber(args[7]) * SPAN + n)
  redis.call('HSET', run, 'st', 'queued', 'cur', cursor, 'sub', at, 'fst', at, 'in', '', 'ih', args[6], 'own', owner,
    'pri', args[3], 'attr', args[4], 'hdr', args[5], 'rqs', cursor)
  redis.call('ZADD', p .. 'index', at, id)
  enqueue(p, owner, id, at)
  ring(p, 'q')
  return { 1, 'queued', args[6], at }
end
