-- set_priority: queues the queued permits again in the new lane, due as before; their old tokens go stale.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local priority = tonumber(ARGV[2])  -- lane 0..99
-- @include lib/core.lua
-- @include lib/permits.lua

if not priority or priority < 0 or priority > 99 or priority % 1 ~= 0 then
  return redis.error_reply("BADPRIORITY a whole number from 0 to 99 is expected")
end
now = now_ms(now)
local state, reply = change_policy("priority", priority, now)
if reply then
  return reply
end
return {"ok", change_lanes(state, now)}
