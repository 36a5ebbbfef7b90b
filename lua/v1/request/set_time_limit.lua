-- set_time_limit: sets how long one call of the handler may take from now on; 0 = no limit. The next slices have it; the
-- caller counts it in the queue's `conf`, so that workers use it for the calls that run.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local time_limit_ms = tonumber(ARGV[2])  -- ms, 0 = none
-- @include lib/core.lua
-- @include lib/permits.lua
local LONGEST = 86400000

if not time_limit_ms or time_limit_ms < 0 or time_limit_ms > LONGEST or time_limit_ms % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT set_time_limit wants a whole number of ms from 0 to " .. LONGEST)
end
now = now_ms(now)
local state, reply = change_policy("time_limit_ms", time_limit_ms, now)
if reply then
  return reply
end
local tokens = mint(state, now)
save_state(state)
return {"ok", tokens}
