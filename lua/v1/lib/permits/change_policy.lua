-- Changes one value of the policy of an unfinished request. Returns its state; or nil and the script's reply,
-- if the request has ended or the value is in force.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
local function change_policy(name, value, now)
  local state, over = load_unfinished()
  if over then
    return nil, over
  end
  if value == state[name] then
    return nil, {"ok", queued_tokens(now)}
  end
  state[name] = value
  redis.call("HSET", request, "policy", policy_text(state))
  return state
end
