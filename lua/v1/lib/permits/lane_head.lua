-- Whose turn it is in a lane, asked by the holder of a permit of request `id` before its token goes there.
-- @include lib/permits/permits.lua
-- @include lib/permits/queue_permit.lua

-- The permit of the next token to be popped, if that is of this request and no copy of a former one.
local function permit_of_token(token)
  local other, g = string.match(string.sub(token, #id + 2), "^(%d+)%.(%d+)$")
  if not other or string.sub(token, 1, #id + 1) ~= id .. "#" then
    return nil
  end
  local permit = read_permit(other)
  permit.k = other
  return permit.kind == "q" and permit.g == g and permit or nil
end

-- Whether it is our turn, and whose permit waits before us: another of this request, or nil = nobody's.
local function turn()
  if #KEYS >= urgent and redis.call("EXISTS", unpack(KEYS, urgent)) > 0 then
    return false
  end
  local token = redis.call("LRANGE", lane_key, -1, -1)[1]
  if not token then
    return true
  end
  local other = permit_of_token(token)
  return other ~= nil, other
end

-- As if the other's token had been popped, and ours dispatched. The auditor looks for what was queued long ago.
local function rotate_own_token(other, at)
  redis.call("LPUSH", lane_key, redis.call("LRANGE", lane_key, -1, -1)[1])
  redis.call("RPOP", lane_key)
  write_queued(other.k, other.g, at, other.lane, other.due)
end
