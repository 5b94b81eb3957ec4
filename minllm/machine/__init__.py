"""What this machine is: its driver, devices, data sheets and measured ceilings, occupancy, and the doctor."""
