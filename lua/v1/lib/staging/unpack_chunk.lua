-- Sub-requests on their way through a staging area come packed, a chunk in one string: how many, the
-- length of each, then their bodies; all numbers little-endian, of four bytes. Their producer has
-- them in such columns, so nothing is done for each of them before it gets into the stream.
-- @include lib/entries/add_entries.lua
local function unpacked(text)
  local count = #text >= 4 and struct.unpack("<I4", text) or -1
  if count < 0 or count > MAX_ENTRIES or #text < 4 + 4 * count then
    return nil
  end
  local bodies, at = {}, 4 + 4 * count
  for i = 1, count do
    local length = struct.unpack("<I4", text, 4 * i + 1)
    bodies[i] = string.sub(text, at + 1, at + length)
    at = at + length
  end
  if at ~= #text then
    return nil
  end
  return bodies
end

local function bad_packing()
  return redis.error_reply("BADCHUNK at most " .. MAX_ENTRIES .. " packed sub-requests are expected: count, lengths, bodies")
end
