-- How a request stands or ended, read from its state.
-- Nothing of a request starts after its deadline; reap makes the rest of it dead.
local function is_overdue(state, now)
  return state.deadline > 0 and now >= state.deadline
end

local function is_ended(state)
  return state.state == "done" or state.state == "cancelled"
end

-- Returns what retire needs: state, born, total, done, dead, cancelled, ended, priority, reason, retain_ms.
local function summary(state)
  local cancelled, ended, reason = state.cancelled, state.ended, ""
  if not ended then  -- it ended before, or was stopped, and that has a reason
    cancelled, ended, reason = unpack(redis.call("HMGET", request, "cancelled", "ended", "reason"))
  end
  return {state.state, state.born, state.total, state.done, state.dead, tonumber(cancelled) or 0, tonumber(ended) or 0,
    state.priority, reason or "", state.retain_ms}
end
