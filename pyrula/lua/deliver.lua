-- deliver: put a message into a run's inbox, and queue the run when it is parked for it.
-- ARGV: id, message id, topic, control 1 | wakes 2 | 0, message
-- Reply: {'OK' | 'REPEAT' | 'ENDED' | 'NONE', status}
-- A control message wakes any parked run, one held back by a delay too; one that wakes does so
-- with a run that waits or sleeps, whatever for; others with one whose topic they carry.
F.deliver = function(keys, args)
  local p, id = keys[1], args[1]
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'top', 'wake', 'own', 'sc', 'sub', 'err')
  local status = f[1]
  if not status then
    return { 'NONE', '' }
  end
  local seen = p .. 'seen:' .. id
  if ended(status, f[7]) then
    return { redis.call('SISMEMBER', seen, args[2]) == 1 and 'REPEAT' or 'ENDED', status }
  end
  if redis.call('SADD', seen, args[2]) == 0 then
    return { 'REPEAT', status }
  end
  redis.call('RPUSH', p .. 'inbox:' .. id, args[5])
  local held_back = status == 'queued' and f[3] and f[3] ~= ''
  if status == 'running' then
    ring(p, 'i:' .. id)
  elseif args[4] == '1' then
    if status ~= 'queued' or held_back then
      release(p, id, f[4], f[5] or f[6], f[3])
      if f[7] and f[7] ~= '' then
        redis.call('HSET', run, 'err', '', 'fin', '')
      end
    end
  elseif (status == 'waiting' or status == 'sleeping') and (args[4] == '2' or f[2] ~= '' and f[2] == args[3]) then
    release(p, id, f[4], f[5] or f[6], f[3])
  end
  return { 'OK', status }
end

-- inbox: all messages of a run that its worker holds. ARGV: id. Reply: list of messages.
F.inbox = function(keys, args)
  return redis.call('LRANGE', keys[1] .. 'inbox:' .. args[1], 0, -1)
end
