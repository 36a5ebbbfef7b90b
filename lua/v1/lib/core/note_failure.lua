-- Notes failed attempts in the request's hash for `status`: how many there were, and the last one as
-- "<ms> <head> <text>". The text is bounded. Unless something fails, nothing is written.
local FAILURE_HEAD = 768  -- it has the type of the error, if its message is long
local FAILURE_TAIL = 768

local function note_failure(now, count, head, text)
  if #text > FAILURE_HEAD + FAILURE_TAIL then
    text = string.sub(text, 1, FAILURE_HEAD) .. "\n[...]\n" .. string.sub(text, -FAILURE_TAIL)
  end
  redis.call("HINCRBY", request, "failures", count)
  redis.call("HSET", request, "failure", string.format("%d", now) .. " " .. head .. " " .. text)
end
