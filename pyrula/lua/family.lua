-- Open children of a run, beside its journal, so that they can be closed when the run is terminated.
-- `kids:<id>` holds each child by its id; `closing` holds terminated runs that had some, by the time (ms).

-- adopt: note a child. ARGV: id, epoch, life, child's id, child as JSON. Reply: 'OK' or 'LOST'
F.adopt = function(keys, args)
  local p, id = keys[1], args[1]
  if not held(p, id, args[2], args[3]) then
    return 'LOST'
  end
  redis.call('HSET', p .. 'kids:' .. id, args[4], args[5])
  return 'OK'
end

-- collected: a child is not open any more. ARGV: id, epoch, life, child's id. Reply: 'OK' or 'LOST'
F.collected = function(keys, args)
  local p, id = keys[1], args[1]
  if not held(p, id, args[2], args[3]) then
    return 'LOST'
  end
  redis.call('HDEL', p .. 'kids:' .. id, args[4])
  return 'OK'
end

-- kids: the open children of a run. ARGV: id. Reply: {child as JSON ...}
F.kids = function(keys, args)
  return redis.call('HVALS', keys[1] .. 'kids:' .. args[1])
end

-- closing: terminated runs whose children are to be closed. ARGV: least age in ms, limit
-- Reply: {{id, {child as JSON ...}} ...}
F.closing = function(keys, args)
  local p = keys[1]
  local _, at_number = now()
  local latest = int(math.floor(at_number / 1000) - tonumber(args[1]))
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', p .. 'closing', '-inf', latest, 'BYSCORE', 'LIMIT', 0, args[2])) do
    found[#found + 1] = { id, redis.call('HVALS', p .. 'kids:' .. id) }
  end
  return found
end

-- closed: the children of a terminated run have been closed. ARGV: id. Reply: 1, or 0 when that was known
F.closed = function(keys, args)
  local p, id = keys[1], args[1]
  redis.call('DEL', p .. 'kids:' .. id)
  return redis.call('ZREM', p .. 'closing', id)
end
