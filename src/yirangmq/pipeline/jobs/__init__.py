"""Jobs on message data in bulk. Each is a function: frames in, frames or a result out."""
