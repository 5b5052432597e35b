"""Host time, and the planning model beside measured times."""
