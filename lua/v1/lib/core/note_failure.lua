-- Notes failed attempts in the request's hash for `status`: how many there were, and the last one as
-- "<ms> <head> <text>". The text is bounded. Unless something fails, nothing is written.
local FAILURE_PART = 768  -- of its beginning, which has the type of the error if its message is long; and of its end

local function note_failure(now, count, head, text)
  if #text > 2 * FAILURE_PART then
    text = string.sub(text, 1, FAILURE_PART) .. "\n[...]\n" .. string.sub(text, -FAILURE_PART)
  end
  redis.call("HINCRBY", request, "failures", count)
  redis.call("HSET", request, "failure", string.format("%d", now) .. " " .. head .. " " .. text)
end
