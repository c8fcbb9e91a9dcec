-- heartbeat: renew the leases of claimed runs. ARGV: lease ms, then id, epoch, life for each.
-- Reply: the ids that are no longer held under that epoch and life.
F.heartbeat = function(keys, args)
  local p = keys[1]
  local _, at_number = now()
  local lease_until = int(math.floor(at_number / 1000) + tonumber(args[1]))
  local lost = {}
  for i = 2, #args, 3 do
    if held(p, args[i], args[i + 1], args[i + 2]) then
      redis.call('ZADD', p .. 'claims', 'XX', lease_until, args[i])
    else
      lost[#lost + 1] = args[i]
    end
  end
  return lost
end

-- disown: requeue what a worker holds in the shard beyond the runs it knows of: a claim whose
-- reply never reached it. ARGV: worker, then the ids it knows. Reply: number requeued.
F.disown = function(keys, args)
  local p = keys[1]
  local known = {}
  for i = 2, #args do
    known[args[i]] = true
  end
  local count = 0
  for _, id in ipairs(redis.call('ZRANGE', p .. 'claims', 0, -1)) do
    local run = p .. 'run:' .. id
    local f = redis.call('HMGET', run, 'st', 'w', 'own', 'sc', 'sub')
    if not known[id] and f[1] == 'running' and f[2] == args[1] then
      redis.call('HINCRBY', run, 'cur', SPAN)
      redis.call('ZREM', p .. 'claims', id)
      release(p, id, f[3], f[4] or f[5], '')
      count = count + 1
    end
  end
  return count
end
