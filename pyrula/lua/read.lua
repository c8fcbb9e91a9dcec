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
-- Looks at no more than the budget, so that no call holds the server for long.
local function fits(f, args, wanted)
  if args[4] ~= '' and f.st ~= args[4] then
    return false
  end
  if args[5] ~= '' and '=' .. (f.own or '') ~= args[5] then
    return false
  end
  if wanted then
    local has = cjson.decode(f.attr or '{}')
    for k, v in pairs(wanted) do
      if has[k] ~= v then
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
  local reply, matches = { 0, '', '' }, 0
  local below = tonumber(args[1])
  for i = 1, #found, 2 do
    local id, score = found[i], tonumber(found[i + 1])
    if not (below and score == below and args[2] ~= '' and id >= args[2]) then
      local flat = redis.call('HGETALL', p .. 'run:' .. id)
      local f = {}
      for k = 1, #flat, 2 do
        f[flat[k]] = flat[k + 1]
      end
      if f.st and fits(f, args, wanted) then
        if not count_only then
          reply[#reply + 1] = { id, flat }
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
