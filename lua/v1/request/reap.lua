-- reap: takes back leases: all expired ones, or those of one dead worker, or the one lease that a supervisor names.
-- A worker's start time is compared too, because a restarted worker has the same name. A death charges an attempt only if
-- exactly one entry of the lease is not settled. A shared lease is charged only if a supervisor names it. reap also
--   queues again the permits whose tokens the auditor found missing;
--   cancels a request that was left open past its time;
--   ends a hold whose time is over;
--   makes dead what has not started by the deadline;
--   brings back a gate and retries that lie too far ahead, if the clock went back.
-- Says: ok look_ms tokens | stopped look_ms tokens | ended summary | foreign | gone
--   look_ms = ms until the next of: the end of a lease, the deadline, the end of a hold; at least 2.
--     1 = call reap again now. 0 = nothing is due.
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local worker = ARGV[2]  -- host:port, or "" for expired leases
local started = ARGV[3]  -- ms; of that worker
local k = ARGV[4]  -- one permit of that worker, or "" for all
local fence = ARGV[5]  -- of that permit
local queue = ARGV[6]  -- of the caller; a request of another queue is refused as foreign
local how = ARGV[7]  -- how that worker's process ended, for the error of the charged sub-request; "" = not known
local missing = 8  -- ARGV[8...]  k, g pairs whose token is nowhere
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua
-- @include lib/gate.lua
-- @include lib/entries.lua
-- @include lib/reap.lua

local state = load_state()
if not state then
  return {"gone"}
end
local row = redis.call("HMGET", request, "queue", "open_until")
if row[1] ~= queue then
  return {"foreign"}
end
if is_ended(state) then
  return {"ended", summary(state)}
end
now = now_ms(now)
if state.few == 2 and state.held == 0 then
  pour(state)  -- lease and permit were deleted
end
local more = take_back(state, now, {worker = worker, started = started, k = k, fence = fence,
  how = how, is_one = worker ~= "" and k ~= ""})
recount_entries(state)
recount_permits(state)
if is_ahead(state, now) then
  bring_back(state, now)
end
if state.open == 1 and (tonumber(row[2]) or 0) < now and state.state ~= "cancelling" then
  abandon(state, "abandoned")
end
if state.hold and state.hold < now then  -- the requeue that held it has died
  state.left = redis.call("DECRBY", counter, 1)
  state.hold = nil
  save_opened(state)
end
if is_overdue(state, now) and (state.state == "active" or state.state == "paused") then
  stop(state, "expiring", "deadline")
end
if state.state == "expiring" then
  pour(state)
  more = bury_the_rest(state, now) or more
end
local again = {}
for i = missing, #ARGV - 1, 2 do
  local permit = ARGV[i] == "0" and is_first_waiting(state) and first_permit(state) or read_permit(ARGV[i])
  if permit.kind == "q" and permit.g == ARGV[i + 1] then
    leave_keys(state, ARGV[i], permit.g)
    queue_permit(state, ARGV[i], now, permit.due, again)
  end
end
local first = redis.call("ZRANGE", leases, 0, 0, "WITHSCORES")
local left = first[2] and tonumber(first[2]) - now or 0
local look = first[2] and math.max(2, left) or 0
if (state.state == "active" or state.state == "paused") and state.deadline > 0 then
  look = math.min(look > 0 and look or state.deadline, math.max(2, state.deadline - now))
end
if state.hold then
  look = math.min(look > 0 and look or math.huge, math.max(2, state.hold + 1 - now))
end
look = more and 1 or look
local reply = finish_or_mint(state, now, state.is_stopped and "stopped" or "ok", look)
for _, part in ipairs(again) do
  table.insert(reply[3] or {}, part)
end
return reply
