-- What goes to the lane of new requests immediately.
-- @include lib/dispatch/turns.lua
-- Adds the words for the tokens that are due now to `tokens`; returns the others as mint did.
local function take_due(minted, id, tokens)
  local later = {}
  for i = 1, #minted, 3 do
    if minted[i + 2] == 0 then
      tokens[#tokens + 1] = place_token(minted[i], id .. "#" .. minted[i + 1])
    else
      later[#later + 1], later[#later + 2], later[#later + 3] = minted[i], minted[i + 1], minted[i + 2]
    end
  end
  return later
end
