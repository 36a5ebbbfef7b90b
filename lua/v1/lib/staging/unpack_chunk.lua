-- Staged sub-requests come packed, a chunk in one string: their number, the length of each, then their bodies. All
-- numbers are little-endian and have four bytes. The producer keeps its rows in such columns, so a row costs no
-- work of its own before it is in the stream.
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
