-- The next token of a lane. The holder of a permit of request `id` looks at it before its own token goes there.
-- @include lib/permits/permits.lua
-- @include lib/permits/queue_permit.lua

-- Returns the permit of the next token to be popped, if that is of this request and no copy of a former one.
local function permit_of_token(id, token)
  local other, g = string.match(string.sub(token, #id + 2), "^(%d+)%.(%d+)$")
  if not other or string.sub(token, 1, #id + 1) ~= id .. "#" then
    return nil
  end
  local permit = read_permit(other)
  permit.k = other
  return permit.kind == "q" and permit.g == g and permit or nil
end

-- Returns true if the lane is empty or its next token is of this request; then also the permit of that token.
local function is_next(id, lane_key)
  local token = redis.call("LRANGE", lane_key, -1, -1)[1]
  if not token then
    return true
  end
  local other = permit_of_token(id, token)
  return other ~= nil, other
end

-- Does what popping the other's token and dispatching ours would do. The auditor looks for what was queued long ago.
local function rotate_own_token(other, at, lane_key)
  redis.call("LPUSH", lane_key, redis.call("LRANGE", lane_key, -1, -1)[1])
  redis.call("RPOP", lane_key)
  write_queued(other.k, other.g, at, other.lane, other.due)
end
