"""The Spark data source `meshmsg`: plans by position and reads logs in parallel."""
