"""Facts about the machine: driver, devices, data sheets and measured ceilings, occupancy, and the doctor's diagnosis."""
