-- extend: gives the holder of a lease more time.
-- Says: ok | cancelled | lost | ended | gone
--   cancelled: extended, but asked to stop
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local fence = ARGV[3]  -- drawn at acquire
local op = ARGV[4]  -- hex; of the acquire
local term = ARGV[5]  -- ms that the lease lasts from now on; "" = as long as the request's leases do
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/reap.lua

local refused = term_error(term)
if refused then
  return refused
end
local state = load_state()
if not state then
  return {"gone"}
end
if is_ended(state) then
  return {"ended"}
end
local permit = read_permit(k)
if permit.fence ~= fence or permit.op ~= op then
  return {"lost"}
end
redis.call("ZADD", leases, "XX", extended_until(state, now_ms(now), term), k)
local unwanted = state.state == "cancelling" or state.state == "expiring"
return {unwanted and "cancelled" or "ok"}
