-- An open request takes more sub-requests from elsewhere than its producer's numbered chunks.
-- @include lib/add_entries.lua
local function grow(state, now, open_ms, bodies)
  local count = add_entries(state, now, 1, bodies)
  redis.call("INCRBY", counter, count)
  redis.call("HSET", request, "open_until", now + open_ms)
  return count
end

-- How such a script ends: the seal, if it is wanted, and the tokens that are due now. What has just
-- come in is not done, so this is never the request's end.
local function grown(state, now, is_sealed)
  if is_sealed then
    state.open = 0
    redis.call("DECRBY", counter, 1)
  end
  local tokens = mint(state, now)
  save_state(state)
  return tokens
end
