-- claim: give up to `limit` runnable runs of the shard to a worker: one of each tenant in turn,
-- a tenant's runs by submission time.
-- ARGV: worker, worker as JSON text, lease ms, limit
-- Reply: {now us, more 1|0, claim ...}, each claim
--   {id, epoch, seq, owner, submitted at us, attributes, headers, {{entry id, raw} ...}, {message ...}, life}
-- The first claim writes run.submitted with the input and run.started; later ones run.resumed.
local function take(p, id, owner, worker, worker_json, lease_until, at)
  local run = p .. 'run:' .. id
  local f = redis.call('HMGET', run, 'st', 'cur', 'sub', 'attr', 'hdr', 'in', 'ct')
  if f[1] ~= 'queued' then
    return nil
  end
  life = life or at
  local cursor = tonumber(f[2]) + SPAN
  local inbox = redis.call('LRANGE', p .. 'inbox:' .. id, 0, -1)
  local started = '{"worker":' .. worker_json .. '}'
  local entries
  if seq_of(cursor) == 0 then
    local again = f[7] and f[7] ~= ''
    local first = submitted(again and at or f[3], f[6], f[7])
    local start = entry('run.started', at, attempt_of(cursor), started)
    write(p, id, 1, first)
    write(p, id, 2, start)
    cursor = cursor + 2
    entries = { { '1', first }, { '2', start } }
    redis.call('HSET', run, 'st', 'running', 'cur', int(cursor), 'w', worker, 'lf', life, 'in', '',
      again and 'ct' or 'fst', again and '' or at)
  else
    cursor = cursor + 1
    write(p, id, seq_of(cursor), entry('run.resumed', at, attempt_of(cursor), started))
    entries = redis.call('XRANGE', p .. 'log:' .. id, '-', '+')
    for i = 1, #entries do
      entries[i][2] = entries[i][2][2]
    end
    redis.call('HSET', run, 'st', 'running', 'cur', int(cursor), 'w', worker, 'lf', life)
  end
  redis.call('ZADD', p .. 'claims', lease_until, id)
  return {
    id, int(epoch_of(cursor)), int(seq_of(cursor)), owner, f[3], f[4] or '{}', f[5] or '{}', entries, inbox, life
  }
end

-- One that is alone keeps its turn, and gives what is wanted at once.
F.claim = function(keys, args)
  local p, worker, worker_json = keys[1], args[1], args[2]
  local at, at_number = now()
  local lease_until = int(math.floor(at_number / 1000) + tonumber(args[3]))
  local wanted = tonumber(args[4])
  local tenants = p .. 'tenants'
  local reply, left, turn = { at, 0 }, true, nil
  while left and #reply - 2 < wanted do
    local missing = wanted - (#reply - 2)
    local owners = redis.call('ZRANGE', tenants, 0, missing)
    local share = #owners == 1 and missing or 1
    left = #owners > missing
    for k = 1, math.min(#owners, missing) do
      local queue = p .. 'queue:' .. owners[k]
      local popped = redis.call('ZPOPMIN', queue, share)
      for i = 1, #popped, 2 do
        reply[#reply + 1] = guarded(p, popped[i], take, owners[k], worker, worker_json, lease_until, at)
      end
      if #popped < 2 * share or redis.call('EXISTS', queue) == 0 then
        redis.call('ZREM', tenants, owners[k])
      else
        left = true
        if #owners > 1 then
          turn = (turn or last_turn(p)) + 1
          redis.call('ZADD', tenants, int(turn), owners[k])
        end
      end
    end
  end
  reply[2] = left and 1 or 0
  return reply
end

-- claim_run: give one given run to a worker, if it is runnable. ARGV: worker, worker as JSON text, lease ms, id
-- Reply: as of `claim`, with one claim or none
F.claim_run = function(keys, args)
  local p, id = keys[1], args[4]
  local at, at_number = now()
  local f = redis.call('HMGET', p .. 'run:' .. id, 'st', 'own', 'wake')
  if f[1] ~= 'queued' or f[3] and f[3] ~= '' then
    return { at, 0 }
  end
  local owner = f[2] or ''
  dequeue(p, owner, id)
  local lease_until = int(math.floor(at_number / 1000) + tonumber(args[3]))
  return { at, 0, guarded(p, id, take, owner, args[1], args[2], lease_until, at) }
end
