-- expire_leftovers: gives keys that outlived their request an end, for doctor --repair. If the request has ended, its
-- working keys are deleted, and the others get its TTL. If there is no request at all, each key gets `ttl`.
-- Says: tidied key_count | alive
--   alive: nothing was touched
-- @flags allow-oom
-- @include lib/request_keys.lua
local ttl = tonumber(ARGV[1])  -- ms that keys without a request stay
-- @include lib/state.lua

if not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT expire_leftovers wants a number of ms for ttl")
end
local state = load_state()
if state and not is_ended(state) then
  return {"alive"}
end
local count = 0
if state then
  ttl = state.retain_ms > 0 and state.retain_ms or ttl
  for _, key in ipairs({stream, counter, permits, leases, retries, few}) do
    count = count + redis.call("UNLINK", key)
  end
end
for _, key in ipairs({stream, counter, request, permits, leases, retries, results, dead, few, errors}) do
  if redis.call("PTTL", key) == -1 then
    count = count + redis.call("PEXPIRE", key, ttl)
  end
end
return {"tidied", count}
