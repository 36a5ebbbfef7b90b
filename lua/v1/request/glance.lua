-- glance: reports what maintenance a request needs, and changes nothing.
-- Says: ok look_ms late_permits chore? | ended summary | foreign | gone
--   look_ms = ms until a lease expires, the deadline passes, or an open request is given up, at least 2;
--   1 = reap has something to do now; 0 = nothing will be due
--   chore = "aged": hasten has something to do; "feed": another request may have something for it; or the requests that this one waits for, see lib/create.lua
--   late_permits = k, g, lane and what follows k and g in the token, of each permit that was queued, and due, longer ago than the grace
-- @flags no-writes
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- of the caller; "" = any
local grace = tonumber(ARGV[3])  -- ms; "" = no tokens are asked for
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/gate.lua
-- @include lib/check.lua

-- Returns k, g, lane and token_suffix of the permits that were queued, and due, before `at`. A time in the future means that the
-- permit was queued before the clock went back.
local function queued_before(state, at, clock)
  local found, all = {}, all_permits(state)
  for i = 1, #all, 2 do
    local g, text, lane, due = string.match(all[i + 1], "^q:(%d+):(%d+):(%d+):(%d+)$")
    local since = tonumber(text or 0)
    if g and math.max(since > clock and 0 or since, tonumber(due)) < at then
      local last = #found
      found[last + 1], found[last + 2], found[last + 3], found[last + 4] = all[i], g, lane, token_suffix(state)
    end
  end
  return found
end

if not grace and ARGV[3] ~= "" then
  return redis.error_reply("BADARGUMENT glance wants a number for grace")
end
local state = load_state()
if not state then
  return {"gone"}
end
local row = redis.call("HMGET", request, "queue", "open_until", "after", "ageing", "aged", "feed")
if queue ~= "" and row[1] ~= queue then
  return {"foreign"}
end
if is_ended(state) then
  return {"ended", summary(state)}
end
now = now_ms(now)
local open_until = tonumber(row[2]) or 0
local first = tonumber(redis.call("ZRANGE", leases, 0, 0, "WITHSCORES")[2])
local chore, wait = chore_of(state, now, row[3], row[4], row[5], row[6])
local look = 1
if not needs_reap(state, now, open_until, first) then
  local next = first or math.huge
  if state.deadline > 0 and (state.state == "active" or state.state == "paused") then
    next = math.min(next, state.deadline)
  end
  if state.open == 1 and state.state ~= "cancelling" then
    next = math.min(next, open_until + 1)
  end
  next = math.min(next, state.hold and state.hold + 1 or math.huge, now + wait)
  look = next < math.huge and math.max(2, math.floor(next - now)) or 0
end
return {"ok", look, grace and queued_before(state, now - grace, now) or {}, chore}
