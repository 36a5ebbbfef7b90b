-- How long a lease lasts without a call of its holder: as long as the request's leases do, or a term of the holder's own.
local LONGEST_TERM = 86400000  -- settings.LONGEST_TERM_MS

local function term_error(term)
  local ms = tonumber(term)
  if term ~= "" and not (ms and ms >= 1 and ms <= LONGEST_TERM) then
    return redis.error_reply("BADARGUMENT extend wants a term from 1 ms to a day, or none")
  end
end

-- Returns when a lease ends that is extended now. A longer term than the request's is noted in the request's hash:
-- such a lease is not from before the clock went back.
local function extended_until(state, now, term)
  local ms = tonumber(term) or state.lease_ms
  if ms > state.lease_ms and ms > tonumber(redis.call("HGET", request, "term") or 0) then
    redis.call("HSET", request, "term", string.format("%d", ms))
  end
  return string.format("%d", now + ms)
end

-- Returns the latest end that a lease may have which was granted or extended now.
local function latest_end(state, now)
  return now + math.max(state.lease_ms, tonumber(redis.call("HGET", request, "term") or 0))
end
