-- sweep: requeue runs whose lease ran out, and delete ended runs whose time is over.
-- ARGV: limit, requeue budget, keep ms for those that fail here
-- Reply: {requeued, failed, deleted}
-- The epoch moves at once, so that the old worker is refused even before another takes the run.
-- A run that loses its worker again and again without recording anything new (its claim's own
-- event does not count) is failed, so that a body that kills its process cannot do so for ever.
local function recover(p, id, budget, keep_ms)
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'cur', 'own', 'sc', 'sub', 'rq', 'rqs')
  redis.call('ZREM', p .. 'claims', id)
  if f[1] ~= 'running' then
    return 0, 0
  end
  local cursor = tonumber(f[2]) + SPAN
  local seq = seq_of(cursor)
  local requeues = losses(cursor, f[6], f[7])
  if requeues > budget then
    local at, at_number = now()
    local raw = entry('run.failed', at, attempt_of(cursor - SPAN),
      '{"error":{"code":"requeue_budget_exhausted","type":"","message":"its worker was lost '
        .. int(requeues) .. ' times in a row before anything new was recorded","detail":{"requeues":'
        .. int(requeues) .. '}}}')
    redis.call('HSET', run, 'cur', int(cursor + 1))
    write(p, id, seq + 1, raw)
    close(p, id, f[3], seq + 1, 'failed', keep_ms, raw, at, at_number)
    return 0, 1
  end
  redis.call('HSET', run, 'cur', int(cursor), 'rq', int(requeues), 'rqs', int(cursor))
  release(p, id, f[3], f[4] or f[5], '')
  return 1, 0
end

F.sweep = function(keys, args)
  local p = keys[1]
  local _, at_number = now()
  local at_ms = int(math.floor(at_number / 1000))
  local requeued, failed, deleted = 0, 0, 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', p .. 'claims', '-inf', at_ms, 'LIMIT', 0, args[1])) do
    local r, f = guarded(p, id, recover, tonumber(args[2]), args[3])
    requeued, failed = requeued + (r or 0), failed + (f or 1)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', p .. 'ended', '-inf', at_ms, 'LIMIT', 0, args[1])) do
    redis.call('ZREM', p .. 'ended', id)
    redis.call('ZREM', p .. 'index', id)
    for link = 1, tonumber(redis.call('HGET', p .. 'run:' .. id, 'ln') or 1) - 1 do
      redis.call('UNLINK', p .. 'old:' .. int(link) .. ':' .. id)
    end
    redis.call('UNLINK', p .. 'run:' .. id, p .. 'log:' .. id, p .. 'inbox:' .. id, p .. 'seen:' .. id,
      p .. 'kv:' .. id, p .. 'out:' .. id, p .. 'kids:' .. id)
    redis.call('ZREM', p .. 'closing', id)
    deleted = deleted + 1
  end
  return { requeued, failed, deleted }
end
