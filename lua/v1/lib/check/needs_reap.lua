-- Decides whether a request needs reap.
-- @include lib/core/state.lua
-- @include lib/permits/first_permit.lua
-- @include lib/permits/mint.lua
-- @include lib/extend/term.lua
-- @include lib/gate/ahead.lua

-- Returns true if reap must act: on a lease, a deadline or damage. A lease that ends later than a new one would is from
-- before the clock went back, and so are a gate that opens and a retry that is due later than they may.
local function needs_reap(state, at, open_until, first)
  local last = first and tonumber(redis.call("ZRANGE", leases, -1, -1, "WITHSCORES")[2])
  if last and last > latest_end(state, at) then
    return true
  end
  if first and first <= at or state.state == "expiring" or state.few == 2 and state.held == 0 then
    return true
  end
  if state.open == 1 and open_until < at and state.state ~= "cancelling" or state.state == "cancelling" and state.held == 0 then
    return true
  end
  if is_overdue(state, at) and (state.state == "active" or state.state == "paused") then
    return true
  end
  if is_ahead(state, at) then
    return true
  end
  local sleeping = state.sleeper ~= "" and 1 or 0
  if count_fields(state) < state.queued + state.held + sleeping then
    return true
  end
  local is_idle = state.state == "active" and state.held + state.queued + sleeping == 0
  if is_idle and ready(state, at) > 0 then
    return true
  end
  local left = state.few == 0 and tonumber(redis.call("GET", counter) or "")
  local over = left and state.total - (left - state.open)
  if not left or over < 0 or redis.call("EXISTS", stream) == 0 then
    return false
  end
  return over ~= state.done + state.dead or is_idle and state.gate.opens <= at and left > state.open
end
