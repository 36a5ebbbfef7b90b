-- Gives up the intents up to the score `seen`: enqueue then refuses them, and their producers must announce anew.
-- An abandoned life has the mark in its own hash. If there is no request, a marker with a TTL is left.
local function give_up(seen, ttl)
  local row = redis.call("HMGET", request, "seen", "state")
  redis.call("HSET", request, "seen", math.max(tonumber(row[1] or -1), math.floor(seen)))  -- no intent lies between
  if not row[2] or row[2] == "abandoned" then
    redis.call("HSET", request, "state", "abandoned")
    redis.call("PEXPIRE", request, ttl)
  end
end
