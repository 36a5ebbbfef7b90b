-- requeue_dead: makes dead sub-requests wait again, with their old index and with all attempts. Their failures in `out`
-- and their errors are deleted, because an index must have one outcome. If the request has ended, this opens it again: it
-- keeps its id, its results and its settings, and it will end once more. A request is opened once by its submission, and once
-- by each requeue after an end. Each opening ends once.
-- Says: ok looked moved tokens | over looked moved summary | ending | ended summary | late seen | expired | abandoned | gone
--   looked = how many of the ids this call has read: it stops after about 4 MiB of bodies
--   over: the last call of a requeue let the request end; ending: it is being cancelled or past its deadline
--   ended: the caller does not know this end, or has not logged it; late: the auditor gave up the intents up to `seen`
--   expired: its results are gone; abandoned: it was never complete, so its id may be submitted anew
-- @flags grows
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local op = ARGV[2]  -- 32 hex digits, different for every call: a repeat with the same ones moves nothing
local ending = ARGV[3]  -- of the opening that is in the log, see lib/ids.lua; "" = the request was seen to run
local intent = tonumber(ARGV[4])  -- the score this caller left in `active`; 0 = none
local shards = ARGV[5]  -- of the queue, as enqueue takes them
local holder = ARGV[6]  -- hex; the same for all calls of one requeue
local more = ARGV[7]  -- "1" = this requeue has more calls: until the last one the request does not end; else ""
local by = ARGV[8]  -- who requeues, as the extra `by` in lib/create.lua; "" = not known
local ids = 9  -- ARGV[9...]  dead entries, at most 1,000
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua
-- @include lib/gate.lua
-- @include lib/entries.lua
-- @include lib/ids.lua
-- @include lib/dead_letters.lua
-- @include lib/places.lua
local MOVES = 5  -- calls that are remembered
local REPAIRS = 5  -- openings that are remembered
local HOLD = 60000  -- ms; a requeue without a call for so long has died

-- Returns why an ended request is not opened by this call, or nil.
local function closed(state)
  if ending_of(state) ~= ending then
    return {"ended", summary(state)}
  end
  local seen = tonumber(redis.call("HGET", request, "seen") or -1)
  if redis.call("HEXISTS", request, "abandoned") == 1 then
    return {"abandoned"}
  elseif seen >= intent then
    return {"late", seen}
  elseif redis.call("EXISTS", results) == 0 then
    return {"expired"}
  end
end

-- Returns the state of a request that has ended as that of its next opening. Fences and tokens go on, so former ones are stale.
local function opened(state, now)
  local last = redis.call("XREVRANGE", results, "+", "-", "COUNT", 1)[1]
  state.reopened = string.format("%d", tonumber(state.reopened or 0) + 1)
  state.since, state.cut = last and last[1] or "0-0", tonumber(redis.call("HGET", request, "cancelled") or 0)
  state.state, state.shards, state.left = "active", shards, 0
  if is_overdue(state, now) then
    state.deadline = 0
  end
  if state.gate.opens == NEVER then  -- the requests that it waited for did not end before its deadline
    state.gate = {opens = 0, rates = state.gate.rates, is_limited = false, turn = state.gate.turn, wait = 0, keys = state.gate.keys}
  end
  return state
end

-- Makes the keys of a running request, which its end has deleted. Nothing that stays is changed, because the caller has more
-- to do that Redis may refuse.
local function make_keys()
  redis.call("UNLINK", stream, counter, permits, leases, retries, few)
  redis.call("XGROUP", "CREATE", stream, stream, "0", "MKSTREAM")
  redis.call("SET", counter, 0)
end

-- Keeps what has a TTL since the end, and forgets the end.
local function keep(state, now)
  for _, key in ipairs({request, results, dead, errors}) do
    redis.call("PERSIST", key)
  end
  redis.call("HSET", request, "policy", policy_text(state))
  if redis.call("HEXISTS", request, "ageing") == 1 then  -- it has not waited since its last lease
    redis.call("HSET", request, "aged", string.format("%d", now))
  end
  if state.gate ~= OPEN then
    redis.call("HSET", request, "gate", gate_text(state.gate))
  end
  if is_ordered(state) then
    take_place(home_of(state), state.gate.keys, true)
  end
  redis.call("HDEL", request, "ended")
  if state.cut == 0 then  -- else it ends as cancelled again, for the same reason
    redis.call("HDEL", request, "reason", "cancelled")
  end
end

-- Notes for people that this requeue has opened the request, or gone on with that:
-- repairs = "<reopened>:<ms>:<count>:<by>" of the last openings, newest first.
local function note_repair(state, now, count, is_new)
  local rows = redis.call("HGET", request, "repairs") or ""
  local reopened, ms, before, who, rest = string.match(rows, "^(%d+):(%d+):(%d+):(%S*) ?(.*)$")
  if is_new or reopened ~= state.reopened then
    reopened, ms, before, who, rest = state.reopened, string.format("%d", now), 0, by, rows
  end
  rows = string.format("%s:%s:%d:%s %s", reopened, ms, before + count, who, rest)
  redis.call("HSET", request, "repairs", string.match(rows, "^" .. string.rep("%S* ?", REPAIRS)))
end

-- Finds the named ones that are still dead; returns them, and how many of the ids were read.
local function read_dead_ones()
  local found, met, bytes, i = {}, {}, 0, ids
  while i <= #ARGV and bytes < DEAD_BYTES do
    local entry = redis.call("XRANGE", dead, ARGV[i], ARGV[i])[1]
    if entry and not met[entry[1]] then  -- named twice, it is moved once
      met[entry[1]] = true
      local fields = fields_of(entry)
      fields.id, fields.index = entry[1], tonumber(string.match(fields.head, "^%d+"))
      found[#found + 1] = fields
      bytes = bytes + #fields.body
    end
    i = i + 1
  end
  table.sort(found, function(one, other) return one.index < other.index end)
  return found, i - ids
end

local refused = ids_error(ARGV, ids)
if refused then
  return refused
end
if not (string.match(op, "^%x+$") and string.match(holder, "^%x+$")) then
  return redis.error_reply("BADARGUMENT requeue_dead wants an op and a holder of hex digits")
end
if not intent or not string.match(ending, "^[%d|]*$") or not string.match(shards, "^[%d,]*$") or not string.match(by, "^[%w_.:-]*$") then
  return redis.error_reply("BADARGUMENT requeue_dead wants an ending, a number for intent, shards and a name")
end
local state = load_state()
if not state then
  return {"gone"}
end
local moves = redis.call("HGET", request, "moves") or ""  -- op:looked:moved of the last calls, newest first
local before_looked, before_moved = string.match(moves, op .. ":(%d+):(%d+) ")
if before_looked and is_ended(state) then
  return {"over", tonumber(before_looked), tonumber(before_moved), summary(state)}
elseif before_looked then
  return {"ok", tonumber(before_looked), tonumber(before_moved), queued_tokens(state, now_ms(now))}
end
local was, is_again = state.state, is_ended(state)
local reply = is_again and closed(state)
if reply then
  return reply
end
now = now_ms(now)
if is_again then
  state = opened(state, now)
end
if state.state == "cancelling" or is_overdue(state, now) then
  return {"ending"}
end
local found, looked = read_dead_ones()
local moved = #found
if is_again and moved == 0 then  -- without work it would never end
  return {"ok", looked, 0, {}}
end
if is_again then
  make_keys()
end
if moved > 0 then
  state.last_ms = math.max(now, state.last_ms + 1)  -- ids must grow, and these begin again at a low index
  prove(state, now, was)
  redis.call("XDEL", dead, "0-0")
end
for _, fields in ipairs(found) do
  redis.call("XADD", stream, string.format("%.0f-%.0f", state.last_ms, fields.index), "b", fields.body)
end
if is_again then
  keep(state, now)
end
for _, fields in ipairs(found) do
  redis.call("XDEL", dead, fields.id)
  if fields.out then
    redis.call("XDEL", results, fields.out)
  end
  forget_error(fields.error)
end
-- One call of several: the request must not end before the last one. Another requeue may hold it already.
local is_held = (more == "1" or looked < #ARGV - ids + 1) and state.open == 0
local before = beside(state)
if is_held and moved > 0 and (not state.hold or state.holder == holder) then
  state.hold, state.holder = now + HOLD, holder
elseif not is_held and state.holder == holder then
  state.hold = nil
end
local added = moved + beside(state) - before
if added ~= 0 then
  state.left = redis.call("INCRBY", counter, added)
end
state.dead, state.fresh = state.dead - moved, state.fresh + moved
if moved > 0 and (is_again or state.reopened and state.holder == holder) then
  note_repair(state, now, moved, is_again)
end
if moved > 0 or added ~= 0 then
  moves = table.concat({op, looked, moved}, ":") .. " " .. moves
  redis.call("HSET", request, "moves", string.match(moves, "^" .. string.rep("%S* ?", MOVES)))
end
if is_again or is_held or added ~= moved then
  save_opened(state)
end
if beside(state) < before and finish(state, now) then
  return {"over", looked, moved, summary(state)}
end
local tokens = mint(state, now)
save_state(state)
-- Ids that are not in `dead` may have been moved by an earlier call whose reply was lost: its tokens are returned again.
return {"ok", looked, moved, moved < looked and queued_tokens(state, now) or tokens}
