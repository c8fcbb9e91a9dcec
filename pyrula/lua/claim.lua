-- claim: give up to `limit` runnable runs of the shard to a worker; the least served tenant first,
-- a tenant's runs by submission time.
-- ARGV: worker, worker as JSON text, lease ms, limit
-- Reply: {now us, more 1|0, claim ...}, each claim
--   {id, epoch, seq, owner, submitted at us, attributes, headers, {{entry id, raw} ...}, {message ...}}
-- The first claim writes run.submitted with the input and run.started; later ones run.resumed.
local function take(p, id, owner, worker, worker_json, lease_until, at)
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'cur', 'sub', 'attr', 'hdr', 'in')
  if f[1] ~= 'queued' then
    return nil
  end
  local cursor = tonumber(f[2]) + SPAN
  local inbox = redis.call('LRANGE', p .. 'inbox:' .. id, 0, -1)
  local started = '{"worker":' .. worker_json .. '}'
  local entries
  if seq_of(cursor) == 0 then
    local submitted = entry('run.submitted', f[3], 0, '{"input":' .. f[6] .. '}')
    local start = entry('run.started', at, attempt_of(cursor), started)
    write(p, id, 1, submitted)
    write(p, id, 2, start)
    cursor = cursor + 2
    entries = { { '1', submitted }, { '2', start } }
    redis.call('HSET', run, 'st', 'running', 'cur', int(cursor), 'w', worker, 'fst', at, 'in', '')
  else
    cursor = cursor + 1
    write(p, id, seq_of(cursor), entry('run.resumed', at, attempt_of(cursor), started))
    redis.call('HSET', run, 'st', 'running', 'cur', int(cursor), 'w', worker)
    entries = {}
    for i, e in ipairs(redis.call('XRANGE', p .. 'log:' .. id, '-', '+')) do
      entries[i] = { e[1], e[2][2] }
    end
  end
  redis.call('ZADD', p .. 'claims', lease_until, id)
  return {
    id, int(epoch_of(cursor)), int(seq_of(cursor)), owner, f[3], f[4] or '{}', f[5] or '{}', entries, inbox
  }
end

F.claim = function(keys, args)
  local p, worker, worker_json = keys[1], args[1], args[2]
  local at, at_number = now()
  local lease_until = int(math.floor(at_number / 1000) + tonumber(args[3]))
  local limit = tonumber(args[4])
  local reply = { at, 0 }
  local tenants = p .. 'tenants'
  local known_empty = false
  while #reply - 2 < limit do
    local owner = redis.call('ZRANGE', tenants, 0, 0)[1]
    if not owner then
      known_empty = true
      break
    end
    local queue = p .. 'queue:' .. owner
    local popped = redis.call('ZPOPMIN', queue)
    local claimed = popped[1] and take(p, popped[1], owner, worker, worker_json, lease_until, at)
    if claimed then
      reply[#reply + 1] = claimed
    end
    if redis.call('EXISTS', queue) == 0 then
      redis.call('ZREM', tenants, owner)
    else
      redis.call('ZINCRBY', tenants, 1, owner)
    end
  end
  if not known_empty then
    reply[2] = redis.call('EXISTS', tenants)
  end
  return reply
end
