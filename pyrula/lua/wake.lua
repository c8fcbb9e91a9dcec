-- wake: queue runs whose timer is due. ARGV: limit. Reply: {woken, next due us or ''}.
F.wake = function(keys, args)
  local p = keys[1]
  local timers = p .. 'timers'
  local at = now()
  local woken = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', timers, '-inf', at, 'LIMIT', 0, args[1])) do
    redis.call('ZREM', timers, id)
    local f = redis.call('HMGET', p .. 'run:' .. id, 'st', 'own', 'sc', 'sub')
    if f[1] == 'sleeping' or f[1] == 'waiting' or f[1] == 'queued' then
      redis.call('HSET', p .. 'run:' .. id, 'st', 'queued', 'wake', '', 'top', '')
      enqueue(p, f[2] or '', id, f[3] or f[4])
      woken = woken + 1
    end
  end
  if woken > 0 then
    ring(p, 'q')
  end
  local nearest = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')
  return { woken, nearest[2] and int(tonumber(nearest[2])) or '' }
end
