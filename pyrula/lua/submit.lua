-- submit: queue one run, or hold it until it is due.
-- ARGV: id, owner, priority, delay ms or '', start at us or '', input, input digest, attributes, headers
-- Reply: {created 1|0, status, digest of the first submission, submitted at us}
-- A run that exists is left as it is; the caller compares the digests.
-- Priority is a head start in the queue, one minute a step, so that nothing starves.
F.submit = function(keys, args)
  local p, id, owner = keys[1], args[1], args[2]
  local run = p .. 'run:' .. id
  local had = redis.call('HMGET', run, 'st', 'ih', 'sub')
  if had[1] then
    return { 0, had[1], had[2], had[3] }
  end
  local at, at_number = now()
  local score = at
  local priority = tonumber(args[3])
  if priority ~= 0 then
    score = int(at_number - priority * 60000000)
  end
  local wake = args[5]
  if args[4] ~= '' then
    wake = int(at_number + tonumber(args[4]) * 1000)
  end
  if wake ~= '' and tonumber(wake) <= at_number then
    wake = ''
  end
  local fields = { 'st', 'queued', 'cur', '0', 'sub', at, 'in', args[6], 'ih', args[7] }
  local function with(name, value, default)
    if value ~= default then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  with('own', owner, '')
  with('sc', score, at)
  with('pri', args[3], '0')
  with('attr', args[8], '{}')
  with('hdr', args[9], '{}')
  with('wake', wake, '')
  redis.call('HSET', run, unpack(fields))
  redis.call('ZADD', p .. 'index', at, id)
  if wake ~= '' then
    set_timer(p, id, wake)
  else
    enqueue(p, owner, id, score)
    ring(p, 'q')
  end
  return { 1, 'queued', args[7], at }
end
