-- Stored times that lie too far ahead, because they were set before the clock went back.
local FAR = 120000  -- ms; after a smaller step of the clock a stored time still holds, and is late

-- Returns true if nothing could set this time now. `longest`: how far ahead it may lie, in ms.
local function is_void(at, now, longest)
  return at > now + math.max(FAR, longest)
end
