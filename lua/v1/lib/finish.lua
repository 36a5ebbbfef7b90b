-- The only place where a request ends: nothing is left to do; or it is cancelled, or past its
-- deadline with the rest of it dead, and nothing is held.
-- One script, so exactly one publish; after it no key is left without a TTL.
local function finish(state, now)
  local left = tonumber(redis.call("GET", counter) or 0)
  local cancelled = state.state == "cancelling" and state.held == 0
  local expired = state.state == "expiring" and left == state.open
  if left > 0 and not cancelled and not expired then
    return false
  end
  state.cancelled = left > state.open and left - state.open or 0
  state.state = state.state == "cancelling" and "cancelled" or "done"
  state.ended = now
  state.open = 0
  state.queued, state.fresh, state.high, state.sleeper, state.free = 0, 0, 0, "", ""
  redis.call("UNLINK", stream, counter, permits, leases, retries)
  save_state(state)
  redis.call("HSET", request, "cancelled", state.cancelled, "ended", now, "open", 0)
  redis.call("PEXPIRE", request, state.retain_ms)
  redis.call("PEXPIRE", results, state.retain_ms)
  redis.call("PEXPIRE", dead, state.retain_ms)
  redis.call("PUBLISH", string.gsub(request, "^req:", "done:", 1), state.state)
  return true
end

-- How a mutating script ends: the end itself, or the tokens that are due now.
local function finish_or_mint(state, now, ...)
  if finish(state, now) then
    return {"ended", summary(state)}
  end
  local tokens = mint(state, now)
  save_state(state)
  local reply = {...}
  reply[#reply + 1] = tokens
  return reply
end
