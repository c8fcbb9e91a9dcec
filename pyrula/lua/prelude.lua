-- Shared by all functions of the library: keys, time, the cursor, the queue.
--
-- KEYS[1] of every function is a shard's prefix, `<namespace>:{<workflow>:<shard>}:`. All keys
-- of the shard begin with it and so lie in the same slot. In what follows, `p` is that prefix.
--
-- The cursor (`cur` in a run's hash) is epoch * SPAN + seq. One HINCRBY moves it and tells,
-- by what comes back, whether the caller's epoch and seq were the current ones. The epoch is
-- odd while a worker holds the run and even while none does, so the attempt number is
-- (epoch + 1) / 2, and what a worker sends after giving a run up is refused like anything stale.
-- Numbers stay below 2^53, where Lua's doubles are exact: 2^28 events, 2^25 epochs.

local F = {}
local SPAN = 268435456
local TERMINAL_KEPT = 10000

local ENDED = { completed = true, failed = true, cancelled = true, terminated = true }

-- A run that was set aside has the status failed and keeps the reason; its journal has no terminal event.
local function ended(status, reason)
  return ENDED[status] and not (status == 'failed' and reason and reason ~= '')
end

local function int(number)
  return string.format('%.0f', number)
end

-- The server's time in microseconds, as a string and as a number. In a library for tests its last line is
-- another one: see `movable_library`.
local function now()
  local t = redis.call('TIME')
  local text = t[1] .. string.format('%06d', tonumber(t[2]))
  return text, tonumber(text)
end

local function epoch_of(cursor)
  return math.floor(cursor / SPAN)
end

local function seq_of(cursor)
  return cursor % SPAN
end

local function attempt_of(cursor)
  return math.floor((epoch_of(cursor) + 1) / 2)
end

-- The life of the server that this library was loaded into: the time of its first claim. A server that comes
-- back may have lost the writes it acknowledged last, a claim among them, and gives that epoch out once more.
-- So a claim is known by its epoch and the life it was given out in, which is kept with the run as `lf`.
-- Within one life no epoch is given out twice, and nothing has to be read to see that the lives agree.
-- A caller that names no life ('') vouches for the epoch alone.
local life

local function known(run, of_claim)
  return of_claim == life or of_claim == '' or redis.call('HGET', run, 'lf') == of_claim
end

-- Whether a worker holds the run under this very epoch, given out in that life.
local function held(p, id, epoch, of_claim)
  local run = p .. 'run:' .. id
  local cursor = tonumber(redis.call('HGET', run, 'cur'))
  return cursor and epoch_of(cursor) == tonumber(epoch) and epoch % 2 == 1 and known(run, of_claim)
end

local function entry(kind, at, attempt, data)
  return '[1,"' .. kind .. '",' .. at .. ',' .. int(attempt) .. ',"",' .. data .. ']'
end

local function write(p, id, seq, raw)
  redis.call('XADD', p .. 'log:' .. id, int(seq) .. '-0', 'e', raw)
end

-- The first entry of a journal. `more` is what a run that goes on in a new journal says of itself, as JSON fields.
local function submitted(at, input, more)
  return entry('run.submitted', at, 0, '{"input":' .. input .. (more and more ~= '' and ',' .. more or '') .. '}')
end

-- The last turn that has been given out; the tenant whose turn comes first is served next.
local function last_turn(p)
  return tonumber(redis.call('ZRANGE', p .. 'tenants', -1, -1, 'WITHSCORES')[2] or 0)
end

-- Put a run into its owner's queue at its own place. A tenant whose queue was empty gets the turn
-- after all others, as does one that was served: it neither banks what it did not use nor jumps the
-- queue, and has waited for no more than one run of each of the others when it is served.
local function enqueue(p, owner, id, score)
  redis.call('ZADD', p .. 'queue:' .. owner, score, id)
  if not redis.call('ZSCORE', p .. 'tenants', owner) then
    redis.call('ZADD', p .. 'tenants', int(last_turn(p) + 1), owner)
  end
end

local function dequeue(p, owner, id)
  redis.call('ZREM', p .. 'queue:' .. owner, id)
  if redis.call('EXISTS', p .. 'queue:' .. owner) == 0 then
    redis.call('ZREM', p .. 'tenants', owner)
  end
end

local function ring(p, message)
  redis.call('SPUBLISH', p .. 'bell', message)
end

-- Hold a run until a time (microseconds), and tell workers when that is the shard's nearest.
local function set_timer(p, id, wake)
  redis.call('ZADD', p .. 'timers', wake, id)
  if redis.call('ZRANGE', p .. 'timers', 0, 0)[1] == id then
    ring(p, 't:' .. wake)
  end
end

-- Put a run that no worker holds back into the queue. `wake` tells whether it has a timer.
local function release(p, id, owner, score, wake)
  if wake and wake ~= '' then
    redis.call('ZREM', p .. 'timers', id)
  end
  redis.call('HSET', p .. 'run:' .. id, 'st', 'queued', 'wake', '', 'top', '')
  enqueue(p, owner or '', id, score)
  ring(p, 'q')
end

-- How often in a row a run has lost its worker, this time included, without recording anything new.
-- `mark` is the cursor at the last loss: since then each claim has written one event of its own.
local function losses(cursor, before, mark)
  mark = tonumber(mark) or 1
  local new = seq_of(cursor) - seq_of(mark) - (attempt_of(cursor) - attempt_of(mark))
  return new > 0 and 1 or (tonumber(before) or 0) + 1
end

-- Call `fn` for one run of many. A run whose data make it fail is set aside with the reason, and the
-- others go on: whatever was lent from the queue or the claims would be lost with the whole call.
local function guarded(p, id, fn, ...)
  local ok, first, second = pcall(fn, p, id, ...)
  if ok then
    return first, second
  end
  local reason = type(first) == 'table' and first.err or tostring(first)
  redis.pcall('HSET', p .. 'run:' .. id, 'st', 'failed', 'fin', (now()), 'wake', '', 'top', '',
    'err', '{"code":"damaged_run","type":"","message":' .. cjson.encode(reason) .. ',"detail":{}}')
  return nil
end

-- The marks of an ended run: status, deletion time, the subscribers' entry, the waiting callers.
-- `raw` is the terminal entry; a large one is announced without its text. A failed run keeps its
-- messages, as it may be revived.
local function close(p, id, owner, seq, status, keep_ms, raw, at, at_number)
  redis.call('HSET', p .. 'run:' .. id, 'st', status, 'fin', at, 'wake', '', 'top', '', 'err', '')
  redis.call('ZADD', p .. 'ended', int(math.floor(at_number / 1000) + tonumber(keep_ms)), id)
  redis.call('XADD', p .. 'terminal', 'MAXLEN', '~', TERMINAL_KEPT, '*',
    'r', id, 's', status, 'o', owner or '', 'q', int(seq))
  if status ~= 'failed' then
    redis.call('DEL', p .. 'inbox:' .. id)
  end
  local told = #raw <= 16384 and raw or ''
  redis.call('SPUBLISH', p .. 'end:' .. id, int(seq) .. ' ' .. told)
end

-- Move the cursor by `n` events (and `turn`, SPAN or 0, to give the claim up).
-- nil: moved. 'DUP': this append was done before (where it gives the claim up, the cursor alone does
-- not prove that it was this one: a sweep or a terminate moves it alike). 'LOST': another epoch.
-- 'GAP': the journal does not end where the caller left it, which only a server that lost writes causes.
local function advance(run, before, n, turn)
  if epoch_of(before) % 2 == 0 then
    return 'LOST'
  end
  local after = before + n + turn
  local got = redis.call('HINCRBY', run, 'cur', int(n + turn))
  if got == after then
    return nil
  end
  local real = redis.call('HINCRBY', run, 'cur', int(0 - n - turn))
  if real == 0 then
    if redis.call('HLEN', run) == 1 then
      redis.call('DEL', run)
    end
    return 'LOST'
  end
  if real == after and n + turn > 0 then
    return 'DUP'
  end
  if epoch_of(real) ~= epoch_of(before) then
    return 'LOST'
  end
  if turn == 0 and real > after then
    return 'DUP'
  end
  return 'GAP'
end
