-- The next token of a lane. The holder of a permit of request `id` reads it before its own token goes to that lane.
-- @include lib/permits/permits.lua
-- @include lib/permits/queue_permit.lua

-- Returns the permit of `token`, the next one to be popped, if the token is of this request and not stale; else nil.
local function permit_of_token(id, token)
  local other, g = string.match(string.sub(token, #id + 2), "^(%d+)%.(%d+)$")
  if not other or string.sub(token, 1, #id + 1) ~= id .. "#" then
    return nil
  end
  local permit = read_permit(other)
  permit.k = other
  return permit.kind == "q" and permit.g == g and permit or nil
end

-- Returns true if the lane is empty, or true and the permit of its next token if that token is of this request.
local function is_next(id, lane_key)
  local token = redis.call("LRANGE", lane_key, -1, -1)[1]
  if not token then
    return true
  end
  local other = permit_of_token(id, token)
  return other ~= nil, other
end

-- Has the same effect as popping the other permit's token and dispatching it again behind the rest. Its time is written
-- anew, because the auditor looks for tokens that were queued long ago.
local function rotate_own_token(other, at, lane_key)
  redis.call("LPUSH", lane_key, redis.call("LRANGE", lane_key, -1, -1)[1])
  redis.call("RPOP", lane_key)
  write_queued(other.k, other.g, at, other.lane, other.due)
end
