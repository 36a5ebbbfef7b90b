-- set_deadline: no sub-request starts later than `deadline_ms` from now; 0 = no deadline any more. A deadline that has
-- passed stays so.
-- Says: ok tokens | ending | ended summary | gone
--   ending: the request is being cancelled or past its deadline
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local deadline_ms = tonumber(ARGV[2])  -- ms from now, 0 = none
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
local LONGEST = 366 * 86400000

if not deadline_ms or deadline_ms < 0 or deadline_ms > LONGEST or deadline_ms % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT set_deadline wants a whole number of ms from 0 to " .. LONGEST)
end
now = now_ms(now)
local before, over = load_unfinished()
if over then
  return over
elseif before.state == "cancelling" or before.state == "expiring" or is_overdue(before, now) then
  return {"ending"}
end
local state, reply = change_policy("deadline", deadline_ms > 0 and now + deadline_ms or 0, now)
if reply then
  return reply
end
local tokens = mint(state, now)
save_state(state)
return {"ok", tokens}
