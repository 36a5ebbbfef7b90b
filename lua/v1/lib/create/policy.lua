-- The policy of a new request, as its producer sends it in one argument: ten whole numbers with colons between them,
--   limit:priority:attempts:backoff_min:backoff_max:lease_ms:retain_ms:time_limit_ms:durable:deadline_ms
-- The request's hash stores the first nine in the same form, see lib/core/state.lua. deadline_ms counts from now, 0 = none.
local TERMS = "^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$"

local function is_whole(text, least, most)
  local number = string.find(text or "", "^%d+$") and tonumber(text)
  return number and number >= least and number <= most
end

local function policy_error(text)
  local limit, priority = string.match(text, "^([^:]*):([^:]*):")
  if not is_whole(priority, 0, 99) then
    return redis.error_reply("BADPRIORITY a whole number from 0 to 99 is expected")
  end
  if not is_whole(limit, 1, 10000) then
    return redis.error_reply("BADLIMIT a whole number from 1 to 10000 is expected")
  end
  if not string.find(text, TERMS) then
    return redis.error_reply("BADARGUMENT ten whole numbers with colons between them are expected as the policy")
  end
end
