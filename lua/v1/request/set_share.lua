-- set_share: gives the tenant of a request another share of the workers' time. The queued permits are queued again, because
-- their tokens name the share; the old tokens go stale.
-- Says: ok tokens | plain | ended summary | gone
--   plain: the request names no tenant
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local share = tonumber(ARGV[2])  -- 1..999
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua

if not share or share < 1 or share > 999 or share % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT a share from 1 to 999 is expected")
end
now = now_ms(now)
local state, over = load_unfinished()
if over then
  return over
end
local former, tenant = string.match(state.gate.turn, "^(%d+):(.+)$")
if not tenant then
  return {"plain"}
elseif tonumber(former) == share then
  return {"ok", queued_tokens(state, now)}
end
local all = state.gate.keys ~= "" and all_permits(state) or {}
for i = 1, #all, 2 do  -- while their tokens name the former share
  local g = string.match(all[i + 1], "^q:(%d+)")
  if g then
    leave_keys(state, all[i], g)
  end
end
state.gate.turn = string.format("%d:%s", share, tenant)
redis.call("HSET", request, "gate", gate_text(state.gate), "share", string.format("%d", share))
return {"ok", change_lanes(state, now)}
