-- load: one run. ARGV: id, ends 1|0. Reply: {field, value ...}, first entry or '', last entry or '';
-- an entry as {entry id, raw}.
local function edge(reply)
  local e = reply[1]
  return e and { e[1], e[2][2] } or ''
end

F.load = function(keys, args)
  local p, id = keys[1], args[1]
  local fields = redis.call('HGETALL', p .. 'run:' .. id)
  if args[2] == '0' or #fields == 0 then
    return { fields, '', '' }
  end
  local log = p .. 'log:' .. id
  return {
    fields,
    edge(redis.call('XRANGE', log, '-', '+', 'COUNT', 1)),
    edge(redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)),
  }
end

-- listing: runs of the shard that match, newest first, by (submitted at, id).
-- ARGV: below us or '+inf', below id (at that very time only smaller ids), lowest us or '-inf',
--       status or '', owner or nothing as '=' .. owner | '', attributes JSON or '', limit, scan budget, count only 1|0
-- Reply: {matches, where to go on us or '', go on id, {id, {field, value ...}} ...}
-- Looks at no more than the budget, so that no call holds the server for long; leaves out the fields
-- that may be large, input and headers.
local SHOWN = {
  'st', 'own', 'attr', 'cur', 'sub', 'ih', 'pri', 'wake', 'top', 'w', 'fst', 'fin', 'err', 'rq', 'ln'
}
local JUDGED = { 'st', 'own', 'attr' }

local function pairs_of(names, values)
  local flat = {}
  for i = 1, #names do
    if values[i] then
      flat[#flat + 1] = names[i]
      flat[#flat + 1] = values[i]
    end
  end
  return flat
end

local function same(a, b)
  if type(a) ~= 'table' or type(b) ~= 'table' then
    return a == b
  end
  for k, v in pairs(a) do
    if not same(v, b[k]) then
      return false
    end
  end
  for k in pairs(b) do
    if a[k] == nil then
      return false
    end
  end
  return true
end

local function fits(status, owner, attributes, args, wanted)
  if not status or args[4] ~= '' and status ~= args[4] then
    return false
  end
  if args[5] ~= '' and '=' .. (owner or '') ~= args[5] then
    return false
  end
  if wanted then
    -- Attributes that this decoder refuses (nested too deep) match nothing, rather than stop the listing.
    local ok, has = pcall(cjson.decode, attributes or '{}')
    if not ok or type(has) ~= 'table' then
      return false
    end
    for k, v in pairs(wanted) do
      if not same(v, has[k]) then
        return false
      end
    end
  end
  return true
end

F.listing = function(keys, args)
  local p = keys[1]
  local wanted = args[6] ~= '' and cjson.decode(args[6]) or nil
  local limit, budget, count_only = tonumber(args[7]), tonumber(args[8]), args[9] == '1'
  local found = redis.call('ZREVRANGEBYSCORE', p .. 'index', args[1], args[3], 'WITHSCORES', 'LIMIT', 0, budget)
  local names = count_only and JUDGED or SHOWN
  local reply, matches = { 0, '', '' }, 0
  local below = tonumber(args[1])
  for i = 1, #found, 2 do
    local id, score = found[i], tonumber(found[i + 1])
    if not (below and score == below and args[2] ~= '' and id >= args[2]) then
      local f = redis.call('HMGET', p .. 'run:' .. id, unpack(names))
      if fits(f[1], f[2], f[3], args, wanted) then
        if not count_only then
          reply[#reply + 1] = { id, pairs_of(names, f) }
        end
        matches = matches + 1
      end
    end
    if matches >= limit or i + 1 == #found and #found / 2 >= budget then
      reply[2], reply[3] = int(score), id
      break
    end
  end
  reply[1] = matches
  return reply
end
