-- What the results of a step choose: the step that gets each result, or the children of each result.
-- @include lib/flows.lua

-- ------------------------------------------------------------------ choices

-- A result of the source may make `width` choices, so it has 1 + width bits in `handed`. The first bit says that this step has
-- passed the result, whether the result chose this step or not. The other bits say which of its choices are here. So a result
-- that chooses this step only in its second run, after a failover took it back, is not lost.
local MOST_CHOICES = 1000

-- Returns the bit of a choice, whose name is index:place, or of a result that was passed, whose name is index.
local function bit_of(name, width)
  local index, place = string.match(name, "^(%d+):?(%d*)$")
  if not index or place == "" and string.find(name, ":", 1, true) then
    return nil
  end
  local bit = tonumber(index) * (width + 1) + (place == "" and 0 or 1 + tonumber(place))
  return bit <= MOST_INDEX and (tonumber(place) or 0) < width and bit or nil
end

local function choices_error(width, list, first)
  if not width or width < 1 or width > MOST_WIDTH or (#list - first) % 2 == 0 or #list >= first + 2 * MOST_CHOICES then
    return redis.error_reply("BADARGUMENT a width of 1 to 100 and at most 1000 pairs of a name and a body are expected")
  end
  for i = first, #list, 2 do
    if not bit_of(list[i], width) then
      return redis.error_reply("BADARGUMENT the names of choices are index:place, or index")
    end
  end
end

-- Returns the bodies of list[first...] that are not here, their bits, and the bits of results that are passed for the first time.
local function sort_out(width, list, first)
  local bodies, bits, passed, met = {}, {}, {}, {}
  for i = first, #list, 2 do
    local bit = bit_of(list[i], width)
    if not met[bit] and not is_handed(bit) then
      met[bit] = true
      if bit % (width + 1) == 0 then
        passed[#passed + 1] = bit
      else
        bodies[#bodies + 1], bits[#bits + 1] = list[i + 1], bit
      end
    end
  end
  return bodies, bits, passed
end

-- ------------------------------------------------------------------ origins

-- The origin of each sub-request, which the step that joins it reads: the bit of its choice, in four bytes. Each field of the
-- hash `joins` has 256 origins. 0 = the origin is lost.
local ORIGINS, NO_ORIGIN = 256, "\0\0\0\0"

-- Returns field -> text with the origins of new sub-requests, the first of which is number `total`.
local function origins_of(total, bits)
  local rows = {}
  for i, bit in ipairs(bits) do
    local number = total + i - 1
    local name = string.format("%d", math.floor(number / ORIGINS))
    local text = rows[name] or redis.call("HGET", joins, name) or ""
    local missing = number % ORIGINS - math.floor(#text / 4)
    rows[name] = string.sub(text, 1, number % ORIGINS * 4) .. string.rep(NO_ORIGIN, missing) .. struct.pack("<I4", bit)
  end
  return rows
end

-- Returns the origins of these sub-requests, in their order.
local function read_origins(numbers)
  local rows, found = {}, {}
  for i, number in ipairs(numbers) do
    local name = string.format("%d", math.floor(number / ORIGINS))
    rows[name] = rows[name] or redis.call("HGET", joins, name) or ""
    local at = number % ORIGINS * 4
    found[i] = #rows[name] >= at + 4 and struct.unpack("<I4", rows[name], at + 1) or 0
  end
  return found
end

-- ------------------------------------------------------------------ parts

-- The parts of bodies. Each body has as many parts as its result chose: 0:index is their number, place:index is a part.

local function chosen_parts_error(width, list, first)
  if not width or width < 1 or width > MOST_WIDTH or (#list - first) % 2 == 0 or #list >= first + MOST_PARTS then
    return redis.error_reply("BADARGUMENT a width of 1 to 100 and at most 1000 pairs of a name and a part are expected")
  end
  for i = first, #list, 2 do
    local place, index = string.match(list[i], "^(%d+):(%d+)$")
    if not place or tonumber(place) > width or tonumber(index) > MOST_INDEX then
      return redis.error_reply("BADARGUMENT the names of parts are place:index")
    end
    if tonumber(place) == 0 and not (string.find(list[i + 1], "^%d+$") and tonumber(list[i + 1]) <= width) then
      return redis.error_reply("BADARGUMENT the number of the parts of a body is expected, at most the width")
    end
  end
end

-- Returns the parts of the body of an index, or nil if one is missing. `kept`: name -> part, of this call.
local function whole(index, kept)
  local function part_of(place)
    local name = place .. ":" .. index
    return kept[name] or redis.call("HGET", joins, name)
  end
  local count = part_of(0)
  local row = {}
  for place = tonumber(count or -1), 1, -1 do  -- most often the last ones are missing
    row[place] = part_of(place)
    if not row[place] then
      return nil
    end
  end
  return count and row
end

-- Returns the bodies that list[first...] completes, the changes of `joins` (name -> part, false = delete it), and the indexes
-- of the bodies. Writes nothing.
local function put_chosen_together(list, first, wrap)
  local bodies, kept, made, indexes = {}, {}, {}, {}
  for i = first, #list, 2 do
    local index = string.match(list[i], ":(%d+)$")
    if not made[index] and not is_handed(index) then  -- else its body was made without it
      kept[list[i]] = list[i + 1]
      local row = whole(index, kept)
      if row then
        made[index] = true
        for place = 0, #row do
          kept[place .. ":" .. index] = false
        end
        bodies[#bodies + 1] = wrap[1] .. table.concat(row, wrap[2]) .. wrap[3]
        indexes[#indexes + 1] = index
      end
    end
  end
  return bodies, kept, indexes
end
