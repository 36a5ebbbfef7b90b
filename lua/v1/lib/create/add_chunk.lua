-- Adds list[first...] to an open request, and writes the fields and values `...` of its hash. Returns the new tokens.
-- @include lib/permits/mint.lua
-- @include lib/entries/add_entries.lua
-- @include lib/entries/prove_rights.lua
local function add_chunk(state, now, list, first, ...)
  prove(state, now)
  redis.call("INCRBY", counter, add_entries(state, now, list, first, #list))
  redis.call("HSET", request, ...)
  local tokens = mint(state, now)
  save_state(state)
  return tokens
end
