-- How a request ends.
-- @include lib/state.lua
-- @include lib/permits.lua

-- Returns how many sub-requests are not done or dead yet, and more while the request is open or held: see beside.
local function left_of(state)
  state.left = state.left or state.few > 0 and state.total or tonumber(redis.call("GET", counter) or 0)
  return state.left
end

-- A call may be repeated for minutes, so the hash stays at least so long: settings.LEAST_TOMBSTONE_MS.
local LEAST_TOMBSTONE = 600000

-- Drops what the steps of a flow share: see lib/flows.lua. A tombstone must not keep it.
local function drop_shared()
  for _, name in ipairs(redis.call("HEXISTS", request, "shared") == 1 and redis.call("HKEYS", request) or {}) do
    if name == "shared" or string.find(name, "^[vc]:") then
      redis.call("HDEL", request, name)
    end
  end
end

-- Called at the end when the counts of the hash do not add up: a torn append-only file, or a refused command, has left a
-- script half done. `rest`: what is cancelled. The stream shows what is not done. If something is left that the counter
-- lacks, corrects the counter and returns true: then this is not the end. Otherwise corrects the counts.
-- @rare
local function recount_end(state, rest)
  local pending = redis.pcall("XPENDING", stream, stream)
  local left = rest == 0 and not pending.err and pending[1] + state.fresh or 0
  if left > 0 then
    state.left = left + beside(state)
    redis.call("SET", counter, state.left)
    return true
  end
  local over = state.total - (state.cut or 0) - rest
  state.dead = math.min(over, math.max(state.dead, redis.call("XLEN", dead)))
  state.done = over - state.dead
end

-- Ends a request if nothing is left to do, if it is cancelled and nothing is held, or if its deadline has passed and all
-- the rest is dead. Only this function ends requests and publishes the end. It leaves no key without a TTL. It writes the
-- end before it deletes anything: if Redis refuses a command in between, expire_leftovers does the rest.
local function finish(state, now)
  local left, extra = left_of(state), state.hold and state.open + 1 or state.open
  local cancelled = state.state == "cancelling" and state.held == 0
  local expired = state.state == "expiring" and left == extra
  if left > 0 and not cancelled and not expired then
    return false
  end
  local was_few = state.few > 0
  local was, rest, cut = state.state, left > extra and left - extra or 0, state.cut or 0
  if state.done + state.dead ~= state.total - cut - rest and not was_few and recount_end(state, rest) then
    return false
  end
  if state.gate.keys ~= "" then
    leave_all_keys(state, all_permits(state))
  end
  state.state = (was == "cancelling" or cut > 0) and "cancelled" or "done"
  rest = rest + cut  -- what was cancelled before a request was reopened stays so
  if state.hold then
    state.hold = nil
    save_opened(state)
  end
  state.open, state.queued, state.fresh, state.high, state.few, state.sleeper, state.free = 0, 0, 0, 0, 0, "", ""
  save_state(state, "cancelled", rest, "ended", string.format("%d", now))
  if was == "active" and not state.reopened then  -- else there may be a reason, which summary reads with these
    state.cancelled, state.ended = rest, now
  end
  redis.call("PEXPIRE", request, string.format("%d", math.max(state.known_ms or state.retain_ms, LEAST_TOMBSTONE)))
  if state.retain_ms > 0 then
    redis.call("PEXPIRE", results, string.format("%d", state.retain_ms))
    if not was_few then
      redis.call("PEXPIRE", dead, string.format("%d", state.retain_ms))
      redis.call("PEXPIRE", errors, string.format("%d", state.retain_ms))  -- dead or not: a refused call may leave one
    end
  else
    redis.call("UNLINK", results, dead, errors)
    drop_shared()
  end
  if was_few then  -- it never had more
    redis.call("UNLINK", permits, leases, few, counter)
  else
    redis.call("UNLINK", stream, counter, permits, leases, retries)
  end
  redis.call("PUBLISH", "done:" .. string.sub(request, 5), state.state)
  return true
end

-- Builds the reply of a script that changes a request: its end, or else `...` and the tokens that are due now.
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
