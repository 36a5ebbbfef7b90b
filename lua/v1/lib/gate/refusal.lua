-- Why an acquire is refused.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
local function acquire_error(count)
  if not count or count < 1 or count > 1000 then
    return redis.error_reply("BADCOUNT a slice of 1 to 1000 is expected")
  end
  return nil
end

local function allowance_error(allowance, wait)
  if allowance ~= "" and not (string.find(allowance, "^%d+$") and string.find(wait, "^%d+$")) then
    return redis.error_reply("BADARGUMENT whole numbers are expected as allowance and wait")
  end
  return nil
end

-- Returns why no slice can be taken now, or "ok".
local function refusal(state, now)
  if state.state ~= "active" or is_overdue(state, now) then
    return "paused"
  elseif state.held >= state.limit then
    return "busy"
  elseif ready(state, now) == 0 then
    return "empty"
  end
  return "ok"
end
