-- What a run publishes beside its journal. Each is fenced by the epoch and the life of the claim.
-- Reply of all: 'OK' or 'LOST'. A repeat changes nothing.

-- attributes: replace the search attributes. ARGV: id, epoch, life, attributes JSON
F.attributes = function(keys, args)
  if not held(keys[1], args[1], args[2], args[3]) then
    return 'LOST'
  end
  redis.call('HSET', keys[1] .. 'run:' .. args[1], 'attr', args[4])
  return 'OK'
end

-- commit: publish a named value. ARGV: id, epoch, life, key, value
F.commit = function(keys, args)
  if not held(keys[1], args[1], args[2], args[3]) then
    return 'LOST'
  end
  redis.call('HSET', keys[1] .. 'kv:' .. args[1], args[4], args[5])
  return 'OK'
end

-- output: append chunk number `index` to the output stream. ARGV: id, epoch, life, index, chunk
F.output = function(keys, args)
  local p, id = keys[1], args[1]
  if not held(p, id, args[2], args[3]) then
    return 'LOST'
  end
  local done = redis.pcall('XADD', p .. 'out:' .. id, args[4] .. '-0', 'e', args[5])
  -- A chunk that is there already has an id that is not above the stream's last.
  if type(done) == 'table' and done.err and not string.find(done.err, 'equal or smaller', 1, true) then
    return done
  end
  return 'OK'
end
