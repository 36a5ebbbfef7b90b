-- The policy of a new request, as its producer sends it in one argument: ten whole numbers with colons between them,
--   limit:priority:attempts:backoff_min:backoff_max:lease_ms:retain_ms:time_limit_ms:durable:deadline_ms
-- The request's hash stores the first nine in the same form, see lib/core/state.lua. deadline_ms counts from now, 0 = none.
local TERMS = "^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$"

local function is_whole(text, least, most)
  local number = string.find(text or "", "^%d+$") and tonumber(text)
  return number and number >= least and number <= most
end

-- Returns its numbers, or nil and the refusal.
local function read_policy(text)
  local limit, priority = string.match(text, "^([^:]*):([^:]*):")
  if not is_whole(priority, 0, 99) then
    return nil, redis.error_reply("BADPRIORITY a whole number from 0 to 99 is expected")
  end
  if not is_whole(limit, 1, 10000) then
    return nil, redis.error_reply("BADLIMIT a whole number from 1 to 10000 is expected")
  end
  local _, _, attempts, backoff_min, backoff_max, lease_ms, retain_ms, time_limit_ms, durable, deadline_ms =
    string.match(text, TERMS)
  if not attempts then
    return nil, redis.error_reply("BADARGUMENT ten whole numbers with colons between them are expected as the policy")
  end
  local n = tonumber
  return {limit = n(limit), priority = n(priority), attempts = n(attempts), backoff_min = n(backoff_min),
    backoff_max = n(backoff_max), lease_ms = n(lease_ms), retain_ms = n(retain_ms), time_limit_ms = n(time_limit_ms),
    durable = n(durable), deadline_ms = n(deadline_ms)}
end
