-- Shards as text: numbers with commas between them; "" = the queue's own lanes.
local function are_shards(text)
  return text == "" or string.find(text or "x", "^%d[%d,]*$") ~= nil
end
