-- check: reports the invariants of one request that do not hold at this moment.
-- Says: = sentences
--   sentences = empty: all hold
-- @flags no-writes
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/check.lua

local broken = {}
local function hold(truth, ...)
  if not truth then
    broken[#broken + 1] = table.concat({...}, " ")
  end
end

local state = load_state()
if not state then
  return broken
end
if is_ended(state) then
  for _, key in ipairs({stream, counter, permits, leases, retries, few}) do
    hold(redis.call("EXISTS", key) == 0, "ended, but", key, "is left")
  end
  for _, key in ipairs({request, results, dead, errors}) do
    hold(redis.call("PTTL", key) ~= -1, "ended, but", key, "has no TTL")
  end
  local cancelled = summary(state)[6]
  hold(state.total == state.done + state.dead + cancelled, "of", state.total, "sub-requests", state.done, "done",
    state.dead, "dead and", cancelled, "cancelled are accounted for")
  hold(state.state == "cancelled" or cancelled == 0, cancelled, "are cancelled, the request is", state.state)
  return broken
end
local are_apart = state.few > 0
for _, key in ipairs(are_apart and {few} or {stream, counter}) do
  hold(redis.call("EXISTS", key) == 1, "not ended, but", key, "is gone")
end
hold(redis.call("EXISTS", few, stream) <= 1, "sub-requests wait in", few, "and in the stream")
if #broken > 0 then
  return broken
end
now = now_ms(now)
local seen = count_permits(state)
local entries, left = {stream = state.total, pending = seen.owed, orphans = 0}, state.total + state.open
if not are_apart then
  entries, left = count_entries(), tonumber(redis.call("GET", counter))
end
local waiting = redis.call("ZCARD", retries)
local work = ready(state, now)
local room = math.min(state.limit - state.held, work)
hold(seen.held == state.held, seen.held, "permits are held,", state.held, "leases stand")
hold(seen.queued == state.queued, seen.queued, "permits are queued awake, the count says", state.queued)
hold(seen.sleeping == (state.sleeper ~= "" and 1 or 0), seen.sleeping, "permits sleep, the sleeper is", state.sleeper)
hold(seen.lost == 0, seen.lost, "permits below", state.high, "are in no state")
hold(seen.parked == seen.listed, seen.parked, "permits are parked,", seen.listed, "are in the parked list")
hold(left == state.fresh + seen.owed + waiting + beside(state), "counter", left, "is not", state.fresh, "undelivered +",
  seen.owed, "held +", waiting, "to retry +", beside(state), "open or held from ending")
hold(settled_by(state, left) == state.done + state.dead, "counter", left, "does not match total", state.total)
hold(entries.stream == entries.pending + state.fresh, entries.stream, "entries,", entries.pending, "pending and",
  state.fresh, "undelivered")
hold(entries.pending == seen.owed + waiting, entries.pending, "pending,", seen.owed, "held and", waiting, "to retry")
hold(entries.orphans == waiting, "consumer - has", entries.orphans, "entries, retry has", waiting)
hold(state.queued <= math.max(0, room), state.queued, "permits are queued for", work, "ready and", state.held, "held")
hold(state.queued == 0 or state.sleeper == "", "a permit sleeps while", state.queued, "are awake")
local awake = state.queued > 0 or (state.sleeper ~= "" and state.sleep_due <= now)
hold(state.state ~= "active" or is_overdue(state, now) or room <= 0 or awake, work, "wait, there is room, and nothing is queued")
return broken
