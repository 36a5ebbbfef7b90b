-- Changes one value in the policy of an unfinished request, and returns the request's state. Returns nil and the
-- script's reply if the request has ended or already has this value.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
local function change_policy(name, value, now)
  local state, over = load_unfinished()
  if over then
    return nil, over
  end
  if value == state[name] then
    return nil, {"ok", queued_tokens(state, now)}
  end
  state[name] = value
  redis.call("HSET", request, "policy", policy_text(state))
  return state
end
