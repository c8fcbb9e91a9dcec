-- terminate: end a run from outside. ARGV: id, data JSON, keep ms
-- Reply: {'OK' | 'ENDED' | 'NONE', status before}
-- The journal is not read; a run that was never claimed gets its run.submitted first.
F.terminate = function(keys, args)
  local p, id = keys[1], args[1]
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'cur', 'own', 'sub', 'in', 'wake', 'err', 'ct')
  local status = f[1]
  if not status then
    return { 'NONE', '' }
  end
  if ended(status, f[7]) then
    return { 'ENDED', status }
  end
  local at, at_number = now()
  local cursor = tonumber(f[2])
  local attempt = attempt_of(cursor)
  if status == 'running' then
    cursor = cursor + SPAN
    redis.call('ZREM', p .. 'claims', id)
  elseif status == 'queued' then
    dequeue(p, f[3] or '', id)
  end
  if f[6] and f[6] ~= '' then
    redis.call('ZREM', p .. 'timers', id)
  end
  local seq = seq_of(cursor)
  if seq == 0 then
    seq = 1
    write(p, id, 1, submitted(f[4], f[5], f[8]))
  end
  local raw = entry('run.terminated', at, attempt, args[2])
  write(p, id, seq + 1, raw)
  redis.call('HSET', run, 'cur', int(epoch_of(cursor) * SPAN + seq + 1), 'in', '')
  close(p, id, f[3], seq + 1, 'terminated', args[3], raw, at, at_number)
  if redis.call('EXISTS', p .. 'kids:' .. id) == 1 then
    redis.call('ZADD', p .. 'closing', int(math.floor(at_number / 1000)), id)
  end
  if status == 'running' then
    ring(p, 'x:' .. id)
  end
  return { 'OK', status }
end

-- revive: queue a failed run again, one that was set aside too. ARGV: id, data JSON, request id
-- Reply: {'OK' | 'STATE' | 'NONE', status before}
F.revive = function(keys, args)
  local p, id = keys[1], args[1]
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'cur', 'own', 'sc', 'sub', 'rv')
  if not f[1] then
    return { 'NONE', '' }
  end
  if f[6] == args[3] then
    return { 'OK', 'failed' }
  end
  if f[1] ~= 'failed' then
    return { 'STATE', f[1] }
  end
  local at = now()
  local cursor = tonumber(f[2]) + 1
  write(p, id, seq_of(cursor), entry('run.retried', at, attempt_of(cursor), args[2]))
  redis.call('HSET', run, 'cur', int(cursor), 'rv', args[3], 'err', '', 'fin', '', 'rq', '0')
  redis.call('ZREM', p .. 'ended', id)
  release(p, id, f[3], f[4] or f[5], '')
  return { 'OK', 'failed' }
end
